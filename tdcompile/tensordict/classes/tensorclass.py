"""``TensorClass``: dataclasses of tensors. An instance is a dense tensordict with declared fields.

Key names: :class:`TensorClass` (base), :func:`tensorclass` (decorator), :func:`is_tensorclass`,
:func:`from_dataclass`.

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf; a leaf is ``(*B, *F)``.

Invariant: an instance has the state of a dense tensordict and nothing more; its entries are the
fields that have a value. A field that is ``None`` has no entry.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from torch import Tensor

from tdcompile.tensordict.base import DENSE_SLOTS, TensorDictMethods
from tdcompile.tensordict.casts import convert, hint_class
from tdcompile.tensordict.classes.declare import (
    METADATA,
    begin,
    define,
    delete_field,
    init_var_defaults,
    write_field,
)
from tdcompile.tensordict.classes.fields import (
    OPTIONS,
    FieldsMeta,
    Schema,
    caller_scope,
    lock_like,
    names_of_options,
    option_flags,
    own_annotations,
)
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.keys import NO_DEFAULT, unravel_key_to_tuple
from tdcompile.tensordict.mapping import names_an_entry
from tdcompile.tensordict.messages import require_fields
from tdcompile.tensordict.metadata import as_device, as_size
from tdcompile.tensordict.nontensor.data import NonTensorData, NonTensorEntry


class TensorClassMeta(FieldsMeta):
    """Makes a tensorclass of each subclass of ``TensorClass``."""

    __tensorclass_schema__: Any

    def __init__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> None:
        super().__init__(name, bases, namespace)
        if not namespace.get("_is_blank", False):
            annotations = own_annotations(cls)
            defaults = {key: namespace[key] for key in annotations if key in namespace}
            define(
                cls,
                TensorClass,
                options,
                annotations,
                defaults,
                caller_scope("tdcompile.tensordict"),
            )

    def __new__(  # noqa: D102
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> Any:
        # What is no option of ours is for ``__init_subclass__`` of the bases.
        rest = {key: value for key, value in options.items() if key not in _KEYWORDS}
        return super().__new__(mcs, name, bases, namespace, **rest)


_KEYWORDS = (*OPTIONS, "kw_only", "cast_filter")


class TensorClass(TensorDictMethods, metaclass=TensorClassMeta):
    """Base of dataclasses whose instances are tensordicts with attributes.

    A subclass declares its fields as a dataclass does. Its constructor takes the fields and the
    keywords `batch_size`, `device`, `names` and `lock`. An instance has all methods of a
    tensordict, and they return instances of the same class. Fields that are no tensors are
    stored as ``NonTensorData`` and read back as they are. A field without a value reads as
    ``None``.

    Options, as ``class X(TensorClass, nocast=True)`` or ``class X(TensorClass["nocast"])``:

    - ``autocast``: a value is converted to the annotated type.
    - ``nocast``: numbers and arrays stay what they are; else they become tensors.
    - ``tensor_only``: every annotation is a tensor or tensordict type, every value becomes one.
    - ``frozen``: attributes cannot be set, the instance is locked and hashable.
    - ``shadow``: a field may have the name of a method, which it hides.
    - ``cast_filter``: which leaves a cast of an instance is for, as in ``td.to(cast_filter=...)``.
    - ``skip_post_init_on_rebuild``: ``__post_init__`` is for constructors only; else it runs for
      the result of each operation, too.

    Raises:
        AttributeError: at the class statement, if a field has the name of a method.
        TypeError: at the class statement, if options are unknown or exclude each other.

    Example:
        >>> class Point(TensorClass):
        ...     x: torch.Tensor
        ...     label: str = "none"
        >>> points = Point(torch.zeros(3, 2), "p", batch_size=[3])
        >>> points[0].x.shape, (points + 1).label
        (torch.Size([2]), 'p')
    """

    __slots__ = DENSE_SLOTS
    _is_blank = True
    _autocast = _nocast = _frozen = _tensor_only = _shadow = _skip_post_init_on_rebuild = False

    __tensorclass_schema__: Any = Schema
    __hash__ = None  # type: ignore[assignment]
    _from_entries = TensorDict.__dict__["_from_entries"]

    def __init__(
        self,
        *args: Any,
        batch_size: Any = None,
        device: Any = None,
        names: Any = None,
        **kwargs: Any,
    ) -> None:
        """Set the fields, for a constructor of a subclass that calls ``super().__init__``."""
        model = self.__tensorclass_schema__.model
        if model is None:
            raise NotImplementedError(
                f"expected a class with fields, found {type(self).__name__} itself: "
                "declare fields in a subclass"
            )
        if batch_size is not None or device is not None or names is not None:
            begin(self, batch_size, device, names, self._frozen)
        model.__init__(self, *args, **kwargs)

    def __class_getitem__(cls, item: Any) -> Any:
        """Return a base class with options set, as in ``TensorClass["nocast", "frozen"]``."""
        options = names_of_options(item, OPTIONS)
        if options is None:
            if any(
                isinstance(part, str) for part in (item if isinstance(item, tuple) else (item,))
            ):
                raise TypeError(
                    f"expected options out of {OPTIONS} in {cls.__name__}[...], found {item!r}"
                )
            return super().__class_getitem__(item)
        name = f"{cls.__name__}_{'_'.join(options)}"
        blank: Any = TensorClassMeta(name, (cls,), {"_is_blank": True, "__module__": __name__})
        for option in option_flags(cls, dict.fromkeys(options, True)):
            setattr(blank, f"_{option}", True)
        return blank

    @classmethod
    def fields(cls) -> tuple[dataclasses.Field[Any], ...]:
        """Return the fields as ``dataclasses.fields`` does."""
        return dataclasses.fields(cls)  # type: ignore[arg-type]

    # -- making instances ----------------------------------------------------------------------

    @classmethod
    def from_tensordict(
        cls, tensordict: Any, non_tensordict: dict[str, Any] | None = None, safe: bool | None = None
    ) -> Self:
        """Return an instance with the entries of a tensordict: the same tensors, no copy.

        Later writes to either do not show in the other. Fields without an entry are ``None``.

        Args:
            tensordict: a tensordict of any kind whose keys are fields.
            non_tensordict: values of further fields.
            safe: accepted for compatibility.

        Raises:
            UnknownFieldError: if a key is no field.
            TypeError: if `tensordict` is none.
        """
        if not isinstance(tensordict, TensorDictMethods):
            raise TypeError(
                f"expected a tensordict to make {cls.__name__} of, found "
                f"{type(tensordict).__name__}: use from_dict for a mapping"
            )
        td: Any = tensordict
        require_fields(cls, td._entries)
        entries = td._entries.copy()
        result: Any = cls._from_entries(entries, td._batch_size, td._device, td._names)
        for name, value in (non_tensordict or {}).items():
            setattr(result, name, value)
        schema = cls.__tensorclass_schema__
        if not schema.runs_post_init and hasattr(cls, "__post_init__"):
            result.__post_init__(*init_var_defaults(cls))
        if td._is_locked:
            lock_like(result, td)
        return result  # type: ignore[no-any-return]

    _from_tensordict = from_tensordict

    @classmethod
    def _make(
        cls, source: Any, batch_size: Any = None, device: Any = None, names: Any = None
    ) -> Self:
        return cls.from_tensordict(
            _without_none(TensorDict(source, batch_size=batch_size, device=device, names=names))
        )

    @classmethod
    def from_dict(
        cls,
        input_dict: Any,
        *,
        auto_batch_size: bool | None = None,
        batch_size: Any = None,
        device: Any = None,
        batch_dims: int | None = None,
        names: Any = None,
    ) -> Self:
        """Return an instance with the fields of a dictionary; see ``TensorDict.from_dict``.

        A nested dictionary becomes an instance of the tensorclass that the field is annotated with,
        else a ``TensorDict``. An item that is ``None`` is a field without a value.

        Raises:
            UnknownFieldError: if a key is no field.
        """
        plain = _without_none(
            TensorDict.from_dict(
                input_dict,
                auto_batch_size=auto_batch_size,
                batch_size=batch_size,
                device=device,
                batch_dims=batch_dims,
                names=names,
            )
        )
        return _adopt_tree(cls, plain)  # type: ignore[no-any-return]

    # -- access --------------------------------------------------------------------------------

    def get(self, key: Any, default: Any = NO_DEFAULT, **form: Any) -> Any:
        """Return the value of a field, or of an entry below it; a non-tensor comes as it is.

        A field without a value gives ``None``; what is neither field nor entry gives `default`. As
        in the tensordict package, ``"batch_size"``, ``"device"`` and ``"names"`` are known, too.
        """
        if form:
            return super().get(key, default, **form)
        path = unravel_key_to_tuple(key)
        if len(path) == 1 and path[0] in self.__tensorclass_schema__.known:
            return getattr(self, path[0])
        if len(path) == 1 and path[0] in METADATA:
            return getattr(self, path[0])
        value = self._get_path(path, default)
        return value._bare() if isinstance(value, NonTensorEntry) else value

    def set(
        self, key: Any, item: Any, inplace: bool = False, *, non_blocking: bool = False
    ) -> Self:
        """Store a field, or an entry below one, and return the instance; see ``TensorDict.set``.

        Raises:
            UnknownFieldError: if there is no such field.
            LockedError: if the instance is locked (and it is no in-place write).
        """
        path = unravel_key_to_tuple(key)
        if len(path) > 1 or (inplace and path[0] in self._entries):
            super().set(key, item, inplace, non_blocking=non_blocking)
        else:
            require_fields(type(self), path)
            write_field(self, path[0], item)
        return self

    def __getitem__(self, index: Any) -> Any:
        """Return the instance indexed in its batch dimensions.

        Raises:
            ValueError: if `index` is a key; fields are read as attributes or by :meth:`get`.
        """
        if isinstance(index, str) or (isinstance(index, tuple) and names_an_entry(index)):
            raise _key_as_index(self, index, "read", "get(key)")
        return self._index(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write into indexed rows.

        Raises:
            ValueError: if `index` is a key, or `value` a tensorclass with other fields.
        """
        if isinstance(index, str) or (isinstance(index, tuple) and names_an_entry(index)):
            raise _key_as_index(self, index, "write", "set(key, value)")
        if isinstance(value, TensorClass) and type(value) is not type(self):
            theirs = value.__tensorclass_schema__.known
            if theirs != self.__tensorclass_schema__.known:
                raise ValueError(
                    "__setitem__ is only allowed for same-class or compatible class "
                    f"({type(self).__name__} == {type(value).__name__}) assignment: expected the "
                    f"fields {list(self.__tensorclass_schema__.names)}, found {sorted(theirs)}"
                )
        self._set_index(index, value)

    def __delattr__(self, name: str) -> None:
        """Remove the value of a field, which then reads as ``None``.

        Raises:
            FrozenInstanceError: if the class is frozen.
            LockedError: if the instance is locked.
        """
        # In Python and not left to the property: a trace inlines this, and no deleter.
        if name in self.__tensorclass_schema__.known:
            delete_field(self, name)
        else:
            object.__delattr__(self, name)

    def __bool__(self) -> bool:
        raise RuntimeError(
            f"expected no truth value of a tensorclass, found bool({type(self).__name__}): "
            "use is_empty(), or reduce a comparison with .all() or .any()"
        )

    def _to_entry(self, value: Any, path: Any) -> Any:
        if not isinstance(value, Tensor) or self._autocast:
            name = path if isinstance(path, str) else path[-1]
            value = convert(self, name, value)
        return super()._to_entry(value, path)

    def flatten_keys(
        self, separator: str = ".", inplace: bool = False, is_leaf: Any = None
    ) -> Self:
        """Return the instance itself flattened, where that gives no other keys than fields.

        Raises:
            UnknownFieldError: if there are nested entries.
        """
        result = super().flatten_keys(separator, False, is_leaf)
        require_fields(type(self), result._entries)
        return super().flatten_keys(separator, True, is_leaf) if inplace else result

    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        """Return the instance with keys split at `separator`, where their first parts are fields.

        Raises:
            UnknownFieldError: if the first part of a key is no field.
        """
        result = super().unflatten_keys(separator, False)
        require_fields(type(self), result._entries)
        return super().unflatten_keys(separator, True) if inplace else result

    # -- plain forms ---------------------------------------------------------------------------

    def to_dict(
        self,
        *,
        retain_none: bool = True,
        convert_tensors: Any = False,
        tolist_first: bool = False,
    ) -> Any:
        """Return nested dictionaries; fields without a value come as ``None`` if `retain_none`."""
        result = super().to_dict(
            retain_none=retain_none, convert_tensors=convert_tensors, tolist_first=tolist_first
        )
        if retain_none:
            for name in self.__tensorclass_schema__.names:
                if name not in self._entries:
                    result[name] = None
        return result

    def __replace__(self, /, **changes: Any) -> Self:
        """Return a shallow copy with some fields changed: ``copy.replace`` of Python 3.13."""
        result = self.copy()
        for name, value in changes.items():
            result.set(name, value)
        return result


def _key_as_index(td: Any, index: Any, verb: str, call: str) -> ValueError:
    return ValueError(
        f"expected an index into the batch dimensions of {type(td).__name__}, found the key "
        f"{index!r}: {verb} a field as an attribute or with {call}"
    )


def _without_none(td: Any) -> Any:
    """Remove entries that are ``None``, here and below."""
    entries = td._entries
    for name in list(entries):
        value = entries[name]
        if isinstance(value, NonTensorData) and value.data is None:
            del entries[name]
        elif isinstance(value, TensorCollection):
            _without_none(value)
    return td


def _adopt_tree(cls: Any, td: Any) -> Any:
    """Return an instance of `cls` with the entries of a new tensordict, nested classes included."""
    schema = cls.__tensorclass_schema__
    for name, value in td._entries.items():
        if isinstance(value, TensorDict) and name in schema.known:
            kind = hint_class(cls, name)[0]
            if isinstance(kind, TensorClassMeta):
                # The same key gets another object: the dictionary keeps its size in the loop.
                td._entries[name] = _adopt_tree(kind, value)
    return cls.from_tensordict(td)


def tensorclass(cls: Any = None, /, **options: Any) -> Any:
    """Make a tensorclass of a class with annotated fields; see :class:`TensorClass`.

    The result is a new class of the same name, a subclass of ``TensorClass`` and of the bases of
    `cls`. ``super()`` and ``__class__`` in its methods mean the new class.

    Args:
        cls: the class; without it, a decorator is returned.
        **options: ``autocast``, ``nocast``, ``tensor_only``, ``frozen``, ``shadow``,
            ``skip_post_init_on_rebuild``, ``cast_filter``, and ``kw_only`` as for
            ``dataclasses.dataclass``.

    Raises:
        AttributeError: if a field has the name of a tensordict's method and ``shadow`` is not set.
        TypeError: if options are unknown or exclude each other.

    Example:
        >>> @tensorclass
        ... class Point:
        ...     x: torch.Tensor
        >>> Point(torch.zeros(3, 2), batch_size=[3])
        Point(batch_size=[3], fields={x: f32[2]})
    """
    if cls is None:
        return lambda cls: tensorclass(cls, **options)
    unknown = [name for name in options if name not in _KEYWORDS]
    if unknown:
        raise TypeError(f"expected options out of {_KEYWORDS}, found {unknown}")
    scope = caller_scope("tdcompile.tensordict")
    if isinstance(cls, TensorClassMeta):
        annotations, defaults = cls.__tensorclass_schema__.own
        define(cls, TensorClass, options, annotations, defaults, scope)
        return cls
    namespace = {
        name: value
        for name, value in cls.__dict__.items()
        if name not in ("__dict__", "__weakref__")
    }
    namespace["__qualname__"] = cls.__qualname__
    bases = tuple(base for base in cls.__bases__ if base is not object)
    result = TensorClassMeta(cls.__name__, (*bases, TensorClass), namespace, **options)
    _repoint_class_cells(cls, result)
    return result


def _repoint_class_cells(old: type, new: type) -> None:
    """Make ``super()`` and ``__class__`` in methods of `old` mean `new`, which has them now."""
    for value in new.__dict__.values():
        functions = [value, getattr(value, "__func__", None)]
        if isinstance(value, property):
            functions += [value.fget, value.fset, value.fdel]
        for function in functions:
            code = getattr(function, "__code__", None)
            closure = getattr(function, "__closure__", None)
            if code is None or not closure or "__class__" not in code.co_freevars:
                continue
            cell = closure[code.co_freevars.index("__class__")]
            if cell.cell_contents is old:
                cell.cell_contents = new


def is_tensorclass(obj: Any) -> bool:
    """Tell whether `obj` is a tensorclass or an instance of one."""
    cls = obj if isinstance(obj, type) else type(obj)
    return isinstance(cls, TensorClassMeta)


def from_dataclass(
    obj: Any,
    *,
    dest_cls: Any = None,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    batch_size: Any = None,
    device: Any = None,
    **options: Any,
) -> Any:
    """Return a tensorclass for a dataclass, or an instance for an instance of a dataclass.

    Args:
        obj: a dataclass or an instance of one.
        dest_cls: the tensorclass of the result; by default one is made for the class of `obj`.
        auto_batch_size: take the longest leading shape that all leaves share.
        batch_dims: at most so many batch dimensions; used with `auto_batch_size`.
        batch_size: the batch size ``(*B,)``.
        device: every leaf is moved there.
        **options: as for :func:`tensorclass`, for the class that is made.

    Raises:
        TypeError: if `obj` is no dataclass.
    """
    if not dataclasses.is_dataclass(obj):
        raise TypeError(
            f"expected a dataclass or an instance of one, found {type(obj).__name__}: use from_any"
        )
    if isinstance(obj, type):
        return obj if is_tensorclass(obj) else _class_of(obj, options)
    if is_tensorclass(obj):
        return obj
    cls = _class_of(type(obj), options) if dest_cls is None else dest_cls
    values = {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj)}
    arguments = {name: value for name, value in values.items() if value is not None}
    result = begin_instance(cls, batch_size, device)
    for name, value in arguments.items():
        write_field(result, name, value)
    if auto_batch_size:
        result.auto_batch_size_(batch_dims)
    if cls._frozen:
        result.lock_()
    return result


def begin_instance(cls: Any, batch_size: Any, device: Any) -> Any:
    """Return an empty instance."""
    return cls._from_entries({}, as_size(batch_size), None if device is None else as_device(device))


def _class_of(source: type, options: dict[str, Any]) -> Any:
    """Return a new tensorclass with the fields and methods of a dataclass."""
    fields = dataclasses.fields(source)
    namespace: dict[str, Any] = {
        "__annotations__": {field.name: field.type for field in fields},
        "__module__": source.__module__,
        "__qualname__": source.__qualname__,
    }
    for field in fields:
        if field.default is not dataclasses.MISSING:
            namespace[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            namespace[field.name] = dataclasses.field(default_factory=field.default_factory)
    return TensorClassMeta(source.__name__, (TensorClass,), namespace, **options)
