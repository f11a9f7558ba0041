"""Making a tensorclass of a class statement: properties, constructor, schema, registrations.

Key names: :func:`define`, :func:`field_property`, :func:`write_field`, :func:`begin`.

Invariant: nothing is worked out anew when an instance is made: ``__init__`` gives it an empty state
and sets one attribute a field, as the ``__init__`` of a dataclass does.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tdcompile.tensordict import kinds
from tdcompile.tensordict.base import DENSE_SLOTS, TensorDictMethods
from tdcompile.tensordict.casting import CASTS
from tdcompile.tensordict.casts import convert, hint_class, require_tensor_hints
from tdcompile.tensordict.classes.fields import OPTIONS, make_schema, option_flags, resolve_hints
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.messages import locked_error
from tdcompile.tensordict.metadata import as_device, as_size
from tdcompile.tensordict.names import check_names
from tdcompile.tensordict.nontensor.data import NonTensorEntry
from tdcompile.tensordict.pytree import register_pytree

if TYPE_CHECKING:
    from collections.abc import Callable

# Arguments of every constructor besides the fields; a shadowing field takes the place of one.
METADATA = ("batch_size", "device", "names")
# A field may take the place of this attribute without further ado.
_ALLOWED_NAMES = ("data",)


def write_field(td: Any, name: str, value: Any) -> None:
    """Store a value that was set as an attribute; ``None`` removes the entry."""
    if td._is_locked:
        raise locked_error((name,))
    if value is None:
        td._entries.pop(name, None)
        return
    if isinstance(value, Mapping) and not isinstance(value, TensorCollection):
        value = convert(td, name, value, keeps_mapping=True)
    entry = td._to_entry(value, name)
    td._entries[name] = entry
    if not isinstance(entry, Tensor) and td._names is None:
        td._take_names(entry)


def field_property(name: str, is_frozen: bool, shows_data: bool) -> property:
    """Make the property that reads and writes the entry `name`."""

    def read(self: Any) -> Any:
        entries = self._entries
        if name not in entries:
            return None
        value = entries[name]
        if not isinstance(value, Tensor) and shows_data and isinstance(value, NonTensorEntry):
            return value._bare()
        return value

    def write(self: Any, value: Any) -> None:
        write_field(self, name, value)

    def write_once(self: Any, value: Any) -> None:
        # The constructor says by None that it is not through yet.
        if self._is_locked is not None:
            raise dataclasses.FrozenInstanceError(
                f"expected no assignment to a frozen {type(self).__name__}, found one to {name!r}: "
                "make a changed copy with replace()"
            )
        write_field(self, name, value)

    return property(read, write_once if is_frozen else write, doc=f"The field {name!r}.")


def delete_field(td: Any, name: str) -> None:
    """Remove the value of a field."""
    if td._frozen:
        raise dataclasses.FrozenInstanceError(
            f"expected no deletion in a frozen {type(td).__name__}, found one of {name!r}"
        )
    if td._is_locked:
        raise locked_error((name,))
    td._entries.pop(name, None)


# -- making a class ------------------------------------------------------------------------------


def define(
    cls: Any,
    root: Any,
    options: dict[str, Any],
    annotations: dict[str, Any],
    defaults: dict[str, Any],
    scope: dict[str, Any],
) -> None:
    """Make a tensorclass of a class: properties, constructor, schema; tell torch and observers.

    Args:
        cls: a subclass of `root` whose namespace is complete.
        root: ``TensorClass``.
        options: what the class statement or the decorator set.
        annotations: the annotations of the class itself.
        defaults: what the class statement assigned to annotated names.
        scope: local names that annotations may use.
    """
    options = dict(options)
    kw_only = bool(options.pop("kw_only", False))
    cast_filter = options.pop("cast_filter", None)
    if cast_filter is not None:
        cls._cast_filter = staticmethod(cast_filter)
        for name in ("type", *CASTS):
            setattr(cls, name, _filtered(getattr(root, name), cast_filter))
    flags = option_flags(cls, options)
    bases = [base.__tensorclass_schema__ for base in cls.__bases__ if issubclass(base, root)]
    model = _model(cls, annotations, defaults, kw_only, [base.model for base in bases])
    names = [field.name for field in dataclasses.fields(model)]
    if "shadow" not in flags:
        _refuse_taken_names(cls, root, names, bases)
    hints: dict[str, Any] = {}
    for base in reversed(bases):
        hints.update(base.hints)
    fresh = {key: hint for key, hint in annotations.items() if key in names}
    hints.update(resolve_hints(cls, fresh, scope))
    has_post_init = hasattr(cls, "__post_init__")
    runs_post_init = has_post_init and "skip_post_init_on_rebuild" not in flags
    schema = make_schema(
        names=tuple(names),
        known=frozenset(names),
        hints=hints,
        own=(annotations, defaults),
        model=model,
        runs_post_init=runs_post_init,
    )
    cls.__tensorclass_schema__ = schema
    for name in names:
        hint_class(cls, name)
    if "tensor_only" in flags:
        require_tensor_hints(cls)

    is_frozen = "frozen" in flags
    for name in names:
        setattr(cls, name, field_property(name, is_frozen, "tensor_only" not in flags))
    for option in OPTIONS:
        setattr(cls, f"_{option}", option in flags)
    cls._is_blank = False
    cls.__expected_keys__ = schema.known
    for attribute in ("__dataclass_fields__", "__dataclass_params__", "__match_args__"):
        setattr(cls, attribute, getattr(model, attribute))
    own = cls.__dict__
    cls.__init__ = _constructor(cls, _custom_init(cls, root, bool(fresh)) or model.__init__, names)
    if "__setattr__" in own and not hasattr(own["__setattr__"], "__wrapped__"):
        cls.__setattr__ = _setattr_for_fields(own["__setattr__"])
    if is_frozen and "__hash__" not in own:
        cls.__hash__ = _hash_of_fields
    if runs_post_init or any(base.runs_post_init for base in bases):
        make = TensorDict.__dict__["_from_entries"]
        cls._from_entries = classmethod(_from_entries_with_post_init) if runs_post_init else make
    if cls.__doc__ is None or "__doc__" not in own:
        cls.__doc__ = f"{cls.__name__}{inspect.signature(cls.__init__)}".replace("(self, ", "(", 1)
    if cls not in kinds.announced():  # a decorator may set options of a class that is complete
        kinds.announce(cls)
        register_pytree(cls)


def _model(
    cls: Any,
    annotations: dict[str, Any],
    defaults: dict[str, Any],
    kw_only: bool,
    base_models: list[Any],
) -> Any:
    """Return a plain dataclass with the same fields: it works out order, defaults, ``__init__``."""
    bases: list[Any] = [model for model in base_models if model is not None]
    # Plain dataclasses among the bases give fields, too.
    bases += [
        base
        for base in cls.__bases__
        if not issubclass(base, TensorDictMethods) and dataclasses.is_dataclass(base)
    ]
    namespace = {
        "__annotations__": annotations,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        **{name: _default(cls, value) for name, value in defaults.items()},
    }
    if hasattr(cls, "__post_init__"):
        namespace["__post_init__"] = cls.__post_init__
    model = type(cls.__name__, tuple(bases), namespace)
    return dataclasses.dataclass(kw_only=kw_only, repr=False, eq=False)(model)


# Tensors that are defaults of fields, by a number that their factories know.
_tensor_defaults: dict[int, Any] = {}
_numbers = itertools.count()


def _default(cls: Any, value: Any) -> Any:
    """Return a default for the model; a tensor is looked up where a trace can follow.

    A trace knows a tensor by the path to it, and there is none to an argument's default.
    """
    field = value if isinstance(value, dataclasses.Field) else dataclasses.field(default=value)
    if not isinstance(field.default, (Tensor, TensorCollection)):
        return value
    number = next(_numbers)
    _tensor_defaults[number] = field.default
    weakref.finalize(cls, _tensor_defaults.pop, number, None)
    return dataclasses.field(
        default_factory=lambda: _tensor_default(number),
        init=field.init,
        repr=field.repr,
        hash=field.hash,
        compare=field.compare,
        metadata=field.metadata,
        kw_only=field.kw_only,
    )


def _tensor_default(number: int) -> Any:
    return _tensor_defaults[number]


def _refuse_taken_names(cls: Any, root: Any, names: list[str], bases: list[Any]) -> None:
    inherited = {name for base in bases for name in base.names}
    for name in names:
        if name not in inherited and name not in _ALLOWED_NAMES and hasattr(root, name):
            raise AttributeError(
                f"Attribute name {name} can't be used with @tensorclass: expected a field name of "
                f"{cls.__name__} that is no attribute of tensordicts. Rename the field, or set "
                "shadow=True to hide the attribute"
            )


def _custom_init(cls: Any, root: Any, has_own_fields: bool) -> Any:
    """Return the ``__init__`` that a class statement wrote, here or in a base; ``None`` if none."""
    init = cls.__init__
    if "__init__" in cls.__dict__ or not has_own_fields:
        custom = getattr(init, "custom", init)
        return None if init is root.__init__ else custom
    return None


def _constructor(cls: Any, assign: Callable[..., None], names: list[str]) -> Callable[..., None]:
    """Return ``__init__``: make an empty instance with the metadata, then set fields by `assign`.

    Args:
        cls: the class.
        assign: the ``__init__`` of the model, or that of the class statement.
        names: the fields.
    """
    is_frozen = cls._frozen
    shadowed = [name for name in (*METADATA, "lock") if name in names]

    def __init__(
        self: Any,
        *args: Any,
        batch_size: Any = None,
        device: Any = None,
        names: Any = None,
        lock: bool = False,
        **kwargs: Any,
    ) -> None:
        # A constructor of a base class, called by that of a subclass, finds the instance begun.
        if type(self) is cls or batch_size is not None or device is not None or names is not None:
            begin(self, batch_size, device, names, is_frozen)
        assign(self, *args, **kwargs)
        if is_frozen:
            self._is_locked = False
        if is_frozen or lock:
            self.lock_()

    def init_shadowed(self: Any, *args: Any, **kwargs: Any) -> None:
        rest = {
            name: kwargs.pop(name) for name in METADATA if name in kwargs and name not in shadowed
        }
        begin(self, rest.get("batch_size"), rest.get("device"), rest.get("names"), is_frozen)
        assign(self, *args, **kwargs)
        if is_frozen:
            self._is_locked = False
            self.lock_()

    init: Any = init_shadowed if shadowed else __init__
    init.__name__ = "__init__"
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    init.__doc__ = f"Set the fields of a new {cls.__name__}."
    init.custom = None if assign is cls.__tensorclass_schema__.model.__init__ else assign
    init.__signature__ = _signature(assign, shadowed)
    return init  # type: ignore[no-any-return]


def _signature(assign: Callable[..., None], shadowed: list[str]) -> inspect.Signature:
    signature = inspect.signature(assign)
    parameters = list(signature.parameters.values())
    tail = [p for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD]
    taken = {p.name for p in parameters}
    for name in METADATA:
        if name not in shadowed and name not in taken:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.insert(
                len(parameters) - len(tail), inspect.Parameter(name, kind, default=None)
            )
    return signature.replace(parameters=parameters)


def begin(td: Any, batch_size: Any, device: Any, names: Any, is_frozen: bool) -> None:
    """Give a new instance the state of an empty tensordict."""
    size = as_size(batch_size)
    td._entries = {}
    td._batch_size = size
    td._device = None if device is None else as_device(device)
    td._names = None if names is None else check_names(names, len(size))
    td._is_locked = None if is_frozen else False


def _setattr_for_fields(method: Callable[..., None]) -> Callable[..., None]:
    """Return a ``__setattr__`` of the user that does not get to see the state of the tensordict."""

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if name in DENSE_SLOTS:
            object.__setattr__(self, name, value)
        else:
            method(self, name, value)

    __setattr__.__wrapped__ = method  # type: ignore[attr-defined]
    return __setattr__


def _hash_of_fields(self: Any) -> int:
    return hash(tuple(getattr(self, name) for name in self.__tensorclass_schema__.names))


def _from_entries_with_post_init(
    cls: Any, entries: dict[str, Any], batch_size: Any, device: Any = None, names: Any = None
) -> Any:
    """Make an instance as ``_from_entries`` does, and call its ``__post_init__``."""
    make: Any = TensorDict.__dict__["_from_entries"]
    self = make.__func__(cls, entries, batch_size, device, names)
    if entries:
        self.__post_init__(*init_var_defaults(cls))
    return self


def _filtered(method: Callable[..., Any], default: Any) -> Callable[..., Any]:
    """Return a cast whose filter is `default` unless the call has one, which may be ``None``."""

    @functools.wraps(method)
    def filtered(self: Any, *args: Any, cast_filter: Any = default) -> Any:
        return method(self, *args, cast_filter=cast_filter)

    return filtered


def init_var_defaults(cls: Any) -> list[Any]:
    """Return what ``__post_init__`` gets where no constructor was called."""
    model = cls.__tensorclass_schema__.model
    return [
        None if field.default is dataclasses.MISSING else field.default
        for field in model.__dataclass_fields__.values()
        if isinstance(field.type, dataclasses.InitVar) or field.type is dataclasses.InitVar
    ]
