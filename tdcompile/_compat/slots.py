"""Hook names of Dynamo trackers, as data: ours are neutral, torch's move between releases.

Key names: :data:`HOOKS` (the table), :class:`HookMixin` (base of every tracker of ours),
:func:`bind_hooks` (what it does at class creation), :func:`upstream_names`.

From torch 2.13 to 2.14 eight hooks of ``VariableTracker`` got another name. A tracker that defines
the name of the other release is not called there, and nothing says so. So a tracker here defines
our neutral name (``getattr_hook``); at class creation it is bound to the installed torch's name.

Invariant: a hook that a tracker defines is one that the installed torch calls, with the
parameters that it passes, or the class statement raises.

Upstream: ``torch/_dynamo/variables/base.py``; checked on torch 2.13.0, 2.14.1 and 2.15.0.
An attribute write has no slot on any of the three: it arrives in ``method_hook`` as
``__setattr__``.
"""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any

from tdcompile._compat.version import torch_version

_Release = tuple[int, int]
_2_13: _Release = (2, 13)
_2_14: _Release = (2, 14)

# A hook's upstream names: {first release with them: names, apart by a space}. A hook with no entry
# for the installed release is not called there; its definition is kept for the releases that do.
HOOKS: dict[str, dict[_Release, str]] = {
    # Renamed in 2.14.
    "getattr_hook": {_2_13: "var_getattr", _2_14: "tp_getattro_impl"},
    "bool_hook": {_2_13: "bool_impl", _2_14: "nb_bool_impl"},
    "length_hook": {_2_13: "mp_length sq_length", _2_14: "mp_length_impl sq_length_impl"},
    "mapping_length_hook": {_2_13: "mp_length", _2_14: "mp_length_impl"},
    "sequence_length_hook": {_2_13: "sq_length", _2_14: "sq_length_impl"},
    "contains_hook": {_2_13: "sq_contains", _2_14: "sq_contains_impl"},
    "repr_hook": {_2_13: "repr_impl", _2_14: "tp_repr_impl"},
    "str_hook": {_2_13: "str_impl", _2_14: "tp_str_impl"},
    "richcompare_hook": {_2_13: "richcompare_impl", _2_14: "tp_richcompare_impl"},
    # Here since 2.14 only.
    "power_hook": {_2_14: "nb_power_impl"},
    "inplace_power_hook": {_2_14: "nb_inplace_power_impl"},
    "matmul_hook": {_2_14: "nb_matrix_multiply_impl"},
    "inplace_matmul_hook": {_2_14: "nb_inplace_matrix_multiply_impl"},
    "invert_hook": {_2_14: "nb_invert_impl"},
    # The same on every supported release.
    "hasattr_hook": {_2_13: "call_obj_hasattr"},
    "method_hook": {_2_13: "call_method"},
    "call_hook": {_2_13: "call_function"},
    "hash_hook": {_2_13: "hash_impl"},
    "iter_hook": {_2_13: "tp_iter_impl"},
    "next_hook": {_2_13: "tp_iternext_impl"},
    "unpack_hook": {_2_13: "unpack_var_sequence"},
    "subscript_hook": {_2_13: "mp_subscript_impl"},
    "assign_subscript_hook": {_2_13: "mp_ass_subscript_impl"},
    "sequence_item_hook": {_2_13: "sq_item_impl"},
    "assign_sequence_item_hook": {_2_13: "sq_ass_item_impl"},
    "index_hook": {_2_13: "nb_index_impl"},
    "int_hook": {_2_13: "nb_int_impl"},
    "float_hook": {_2_13: "nb_float_impl"},
    "negative_hook": {_2_13: "nb_negative_impl"},
    "positive_hook": {_2_13: "nb_positive_impl"},
    "absolute_hook": {_2_13: "nb_absolute_impl"},
    "reconstruct_hook": {_2_13: "reconstruct"},
    "tree_map_hook": {_2_13: "call_tree_map"},
    "tree_map_with_path_hook": {_2_13: "call_tree_map_with_path"},
}

for _operator in (
    "lshift", "rshift", "and", "or", "xor", "add", "subtract", "multiply",
    "true_divide", "floor_divide", "remainder",
):  # fmt: skip
    HOOKS[f"{_operator}_hook"] = {_2_13: f"nb_{_operator}_impl"}
    HOOKS[f"inplace_{_operator}_hook"] = {_2_13: f"nb_inplace_{_operator}_impl"}


def upstream_names(hook: str, version: tuple[int, ...] | None = None) -> tuple[str, ...]:
    """Return the names of a hook on a release of torch.

    Args:
        hook: Our name, a key of :data:`HOOKS`.
        version: A release; the installed one by default.

    Returns:
        The names; empty if that release does not call such a hook.

    Example:
        >>> upstream_names("getattr_hook", (2, 13))
        ('var_getattr',)
    """
    release = (torch_version() if version is None else version)[:2]
    names = [text for since, text in sorted(HOOKS[hook].items()) if since <= release]
    return tuple(names[-1].split()) if names else ()


def bind_hooks(cls: type) -> type:
    """Bind the hooks that a class defines to the installed torch's names.

    Args:
        cls: A tracker class, just created.

    Returns:
        The class itself; for each neutral hook in its body it has the upstream name as well.

    Raises:
        TypeError: A hook is not in the table; or no base class has the upstream name; or the
            parameters differ from those of the base class; or the class body defines an upstream
            name itself, which another release would not call.
    """
    bodies = dict(vars(cls))
    for name, value in bodies.items():
        if name.endswith("_hook") and not name.startswith("_"):
            _bind(cls, name, value)
        elif name in _MOVED_NAMES:
            raise TypeError(
                f"{cls.__qualname__}.{name}: this name of Dynamo is another one in some supported "
                f"release of torch; define {_MOVED_NAMES[name]} instead"
            )
    return cls


class HookMixin:
    """First base of a tracker class: binds its hooks, and gives ``super()`` to each of them.

    ``super().getattr_hook(tx, name)`` reaches the next class's hook under the installed torch's
    name.

    Example:
        >>> class Tracker(HookMixin, UserDefinedObjectVariable):     # doctest: +SKIP
        ...     def getattr_hook(self, tx, name):
        ...         return super().getattr_hook(tx, name)
    """

    if TYPE_CHECKING:
        # The forwarding hooks are made from the table below.
        def __getattr__(self, name: str) -> Any: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Bound first: Dynamo's own __init_subclass__ wraps what it finds under its names.
        bind_hooks(cls)
        super().__init_subclass__(**kwargs)


def _bind(cls: type, hook: str, function: Any) -> None:
    if hook not in HOOKS:
        near = difflib.get_close_matches(hook, HOOKS, n=3)
        raise TypeError(
            f"{cls.__qualname__}.{hook}: no such hook in tdcompile._compat.slots.HOOKS; "
            f"near names: {', '.join(near) if near else 'none'}"
        )
    bound = []
    for upstream in upstream_names(hook):
        stock = next(
            (vars(base)[upstream] for base in cls.__mro__[1:] if upstream in vars(base)), None
        )
        if stock is not None:
            _check_parameters(cls, hook, function, upstream, stock)
            bound.append(upstream)
    if not bound and upstream_names(hook):
        raise TypeError(
            f"{cls.__qualname__}.{hook}: expected a base class with {upstream_names(hook)}, which "
            f"torch {'.'.join(map(str, torch_version()))} calls; found none, so it would never run"
        )
    for upstream in bound:
        setattr(cls, upstream, function)


def _check_parameters(cls: type, hook: str, function: Any, upstream: str, stock: Any) -> None:
    """Raise unless every call of the stock hook is a call of ours."""
    ours = list(inspect.signature(function).parameters.values())
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in ours):
        return
    theirs = list(inspect.signature(stock).parameters.values())
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in theirs):
        return
    our_names = [parameter.name for parameter in ours]
    their_names = [parameter.name for parameter in theirs]
    extra_with_default = all(
        parameter.default is not parameter.empty for parameter in ours[len(theirs) :]
    )
    if our_names[: len(their_names)] != their_names or not extra_with_default:
        raise TypeError(
            f"{cls.__qualname__}.{hook}: expected the parameters ({', '.join(their_names)}) of "
            f"{upstream}, found ({', '.join(our_names)})"
        )


def _forward(hook: str) -> Any:
    """Make the method of the mixin that hands a hook on to the next class."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        names = upstream_names(hook)
        if not names:
            raise NotImplementedError(f"the installed torch calls no {hook}")
        return getattr(super(HookMixin, self), names[0])(*args, **kwargs)

    forward.__name__ = hook
    forward.__qualname__ = f"HookMixin.{hook}"
    forward.__doc__ = f"Hand {hook} on to the next class under the installed torch's name."
    return forward


for _hook in HOOKS:
    setattr(HookMixin, _hook, _forward(_hook))

# Upstream names that some supported release does not call: a class body must not define them.
_MOVED_NAMES = {
    name: hook
    for hook, names in HOOKS.items()
    if len(names) > 1 or min(names) > _2_13
    for text in names.values()
    for name in text.split()
}
