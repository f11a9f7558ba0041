"""Every private name of torch that the seam relies on, as data, and the check of all of them.

Key names: :class:`PrivateName` (one line a name), :data:`CONTRACT` (all of them),
:func:`verify` (every breach at once), :class:`Breach`.

Invariant: a private name that ``tdcompile`` uses stands here with the parameters that it is called
with, so that a new torch gives one list of what moved instead of the first failure.

Checked on torch 2.13.0, 2.14.1 and 2.15.0.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from tdcompile._compat.slots import HOOKS
from tdcompile._compat.version import torch_version

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal["module", "class", "function", "attribute"]

_ALL = ("2.13.0", "2.14.1", "2.15.0")


@dataclass(frozen=True)
class PrivateName:
    """One private name and what we need of it.

    Args:
        path: Dotted path, modules first (``torch._dynamo.side_effects.SideEffects.store_attr``).
        kind: What it has to be; a ``"function"`` is anything callable that is no class.
        parameters: Names that its signature must have (of a class: its constructor).
        needed_by: Module of ours that uses it.
        required: A breach keeps ``install()`` off; otherwise the user of the name copes.
        since: First release that has the name, ``(major, minor)``.
        until: First release that no longer has it.
        checked_on: Releases that it was checked on.
    """

    path: str
    kind: Kind
    parameters: tuple[str, ...] = ()
    needed_by: str = ""
    required: bool = True
    since: tuple[int, int] | None = None
    until: tuple[int, int] | None = None
    checked_on: tuple[str, ...] = _ALL

    def applies_to(self, version: tuple[int, ...]) -> bool:
        """Return whether the name is expected in a release."""
        release = version[:2]
        return (self.since is None or release >= self.since) and (
            self.until is None or release < self.until
        )


@dataclass(frozen=True)
class Breach:
    """One name that is not what the contract says.

    Args:
        name: The contract's record.
        problem: Expected and found, one phrase.
    """

    name: PrivateName
    problem: str

    def __str__(self) -> str:
        user = f" (needed by {self.name.needed_by})" if self.name.needed_by else ""
        return f"{self.name.path}: {self.problem}{user}"


def _names(
    module: str,
    *specs: str,
    needed_by: str,
    required: bool = True,
    since: tuple[int, int] | None = None,
    until: tuple[int, int] | None = None,
) -> list[PrivateName]:
    """Make the records of one module from lines such as ``"class VariableTracker(source)"``."""
    records = []
    for spec in specs:
        kind, _, rest = spec.partition(" ")
        name, _, parameters = rest.rstrip(")").partition("(")
        records.append(
            PrivateName(
                f"{module}.{name}",
                cast("Kind", kind),
                tuple(parameter.strip() for parameter in parameters.split(",") if parameter),
                needed_by,
                required,
                since,
                until,
            )
        )
    return records


def _hook_names() -> list[PrivateName]:
    """Make the records of the tracker hooks, each for the releases that call it."""
    base = "torch._dynamo.variables.base.VariableTracker"
    records = []
    for names in HOOKS.values():
        changes = sorted(names)
        for since, until in zip(changes, [*changes[1:], None], strict=True):
            records += [
                PrivateName(f"{base}.{name}", "function", (), _SLOTS, True, since, until)
                for name in names[since].split()
            ]
    return records


_BACKENDS = "tdcompile._compat.backends"
_COLLECTIVES = "tdcompile._compat.collectives"
_DYNAMO = "tdcompile._compat.dynamo"
_EXCEPTIONS = "tdcompile._compat.exceptions"
_GUARDS = "tdcompile._compat.guards"
_INDUCTOR = "tdcompile._compat.inductor"
_SLOTS = "tdcompile._compat.slots"

# One line a name: kind, name within the module, the parameters that we pass by name.
CONTRACT: list[PrivateName] = [
    *_names(
        "torch",
        "class _TorchCompileWrapper(backend, mode, options)",
        needed_by=_BACKENDS,
    ),
    *_names(
        "torch._dynamo.backends.registry",
        "function lookup_backend",
        "function _discover_entrypoint_backends",
        "attribute _BACKENDS",
        "attribute _COMPILER_FNS",
        needed_by=_BACKENDS,
    ),
    *_names("torch._dynamo.eval_frame", "function innermost_backend", needed_by=_BACKENDS),
    *_names(
        "torch",
        "class _TorchCompileInductorWrapper(mode, options, dynamic, name)",
        needed_by=_INDUCTOR,
    ),
    *_names(
        "torch._inductor",
        "function list_options",
        "function list_mode_options(mode)",
        needed_by=_INDUCTOR,
    ),
    *_names("torch._inductor.config", "attribute post_grad_custom_pre_pass", needed_by=_INDUCTOR),
    *_names("torch._inductor.custom_graph_pass", "class CustomGraphPass", needed_by=_INDUCTOR),
    *_names(
        "torch.distributed._functional_collectives",
        "function all_reduce(self, reduceOp, group)",
        "function all_reduce_coalesced(self, reduceOp, group)",
        needed_by=_COLLECTIVES,
        required=False,
    ),
    *_names("torch", "function _assert_async", needed_by=_COLLECTIVES, required=False),
    *_names("torch._dynamo", "function reset", needed_by=_DYNAMO),
    *_names(
        "torch._dynamo.variables.base",
        "class VariableTracker(source, mutation_type)",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.variables.builder",
        "function VariableBuilder._type_dispatch_impl(trace_numpy)",
        "function VariableBuilder._id_dispatch",
        "attribute SourcelessBuilder._type_handlers",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._C._dynamo.guards",
        "function install_no_tensor_aliasing_guard",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.bytecode_transformation",
        "function create_call_function",
        "function create_call_method",
        "function create_instruction",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.codegen",
        "class PyCodegen",
        "function PyCodegen.create_load_global(name, add)",
        "function PyCodegen.load_import_from",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.exc",
        "class Unsupported",
        "function raise_observed_exception",
        "function unimplemented",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.guards",
        "class GuardBuilder",
        "function install_guard",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.side_effects",
        "class SideEffects",
        "function SideEffects.track_object_existing(item, variable)",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.source",
        "class AttrSource",
        "class DictGetItemSource",
        "class GetItemSource",
        "class NumpyTensorSource",
        "class Source",
        "class TypeSource",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.variables.base",
        "class ValueMutationNew",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.variables.builder",
        "function make_dupe_guard",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.variables.torch_function",
        "function _flatten_vts",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.symbolic_convert",
        "class InstructionTranslator",
        "function InstructionTranslatorBase.setup_or_before_with",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.variables.ctx_manager",
        "class GenericContextWrappingVariable(cm_obj)",
        needed_by=_DYNAMO,
    ),
    *_names("torch._dynamo.variables.iter", "class IteratorVariable", needed_by=_DYNAMO),
    *_names("torch._dynamo.convert_frame", "function has_tensor_in_frame", needed_by=_DYNAMO),
    *_names(
        "torch._dynamo.variables.builtin",
        "class BuiltinVariable",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.variables.constant",
        "class ConstantVariable",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.variables.dicts",
        "class ConstDictVariable",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.variables.functions",
        "class UserFunctionVariable",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.variables.lazy",
        "class LazyVariableTracker",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.variables.lists",
        "class SizeVariable",
        "class TupleVariable",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.variables.tensor",
        "class SymNodeVariable",
        "class TensorVariable",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.variables.torch",
        "class TorchInGraphFunctionVariable",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.variables.user_defined",
        "class UserDefinedClassVariable",
        "class UserDefinedObjectVariable",
        "function UserDefinedObjectVariable.method_setattr_standard(tx, name, value)",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._guards",
        "class Guard",
        "class Source",
        needed_by=_DYNAMO,
    ),
    *_names(
        "torch._dynamo.guards",
        "class CheckFunctionManager",
        needed_by=_GUARDS,
    ),
    *_names(
        "torch._dynamo.source",
        "class ChainedSource",
        "class Source",
        "class DictGetItemSource",
        "class GlobalSource",
        needed_by=_GUARDS,
    ),
    *_names(
        "torch._guards",
        "class ChainedSource",
        "class Source",
        "class Guard",
        "class GuardsSet",
        "class TracingContext",
        needed_by=_GUARDS,
    ),
    *_names(
        "torch._dynamo.output_graph",
        "class OutputGraph",
        "class GraphCompileReason(graph_break)",
        "function OutputGraph.call_user_compiler",
        "function OutputGraph.install_global_by_id(prefix, value)",
        needed_by=_GUARDS,
    ),
    *_names(
        "torch._dynamo.guards",
        "function CheckFunctionManager.build_guards",
        "function recompilation_reason_for_no_tensor_aliasing_guard",
        needed_by=_GUARDS,
    ),
    *_names(
        "torch._dynamo.variables.builtin",
        "attribute BuiltinVariable.call_function_handler_cache",
        "function BuiltinVariable.call_method(tx, name, args)",
        needed_by=_DYNAMO,
    ),
    *_names("torch._dynamo.convert_frame", "class ConvertFrameAssert", needed_by=_EXCEPTIONS),
    *_names(
        "torch._dynamo.symbolic_convert",
        "class InstructionTranslatorBase",
        needed_by=_EXCEPTIONS,
    ),
    *_hook_names(),
]


def verify(names: Iterable[PrivateName] | None = None) -> list[Breach]:
    """Check names against the installed torch.

    Args:
        names: The names; the whole contract by default. Names that the installed release is not
            expected to have are skipped.

    Returns:
        Every breach, in the order of the contract; empty if all is as expected.

    Example:
        >>> verify([PrivateName("torch._dynamo.no_such_name", "function")])[0].problem
        "expected a function, found nothing: no attribute 'no_such_name'"
    """
    version = torch_version()
    breaches = []
    for name in CONTRACT if names is None else names:
        if name.applies_to(version):
            problem = _problem(name)
            if problem is not None:
                breaches.append(Breach(name, problem))
    return breaches


def resolve(path: str) -> Any:
    """Return the object at a dotted path: the longest prefix that is a module, then attributes.

    Raises:
        AttributeError: A part of the path is missing.
    """
    parts = path.split(".")
    module = importlib.import_module(parts[0])
    value: Any = module
    for index, part in enumerate(parts[1:], start=2):
        try:
            value = (
                inspect.getattr_static(value, part)
                if inspect.isclass(value)
                else getattr(value, part)
            )
        except AttributeError:
            if not inspect.ismodule(value):
                raise AttributeError(f"no attribute {part!r}") from None
            try:
                value = importlib.import_module(".".join(parts[:index]))
            except ModuleNotFoundError:
                raise AttributeError(f"no attribute {part!r}") from None
    return value


def _problem(name: PrivateName) -> str | None:
    article = "an" if name.kind == "attribute" else "a"
    expected = f"expected {article} {name.kind}"
    try:
        value = resolve(name.path)
    except AttributeError as missing:
        return f"{expected}, found nothing: {missing}"
    except Exception as failure:
        return f"{expected}, importing it failed: {type(failure).__name__}: {failure}"
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if not _is_kind(value, name.kind):
        return f"{expected}, found {value!r}"
    return _missing_parameters(value, name.parameters)


def _is_kind(value: Any, kind: Kind) -> bool:
    if kind == "module":
        return inspect.ismodule(value)
    if kind == "class":
        return inspect.isclass(value)
    if kind == "function":
        return callable(value) and not inspect.isclass(value)
    return True


def _missing_parameters(value: Any, needed: tuple[str, ...]) -> str | None:
    if not needed:
        return None
    try:
        found = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return f"expected the parameters {', '.join(needed)}, found no signature"
    missing = [parameter for parameter in needed if parameter not in found]
    if not missing:
        return None
    return f"expected the parameters {', '.join(missing)}, found ({', '.join(found)})"
