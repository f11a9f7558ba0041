"""``TypedTensorDict``: a dense tensordict with declared keys that are attributes, too.

Key names: :class:`TypedTensorDict`.

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf; a leaf is ``(*B, *F)``.

Invariant: the constructor gives instances that have every required key and no undeclared one; later
writes may change both, as for any tensordict.
"""

from __future__ import annotations

import typing
from typing import Any, Self

import typing_extensions

from tdcompile.tensordict import kinds
from tdcompile.tensordict.base import TensorDictMethods
from tdcompile.tensordict.classes.fields import (
    FieldsMeta,
    caller_scope,
    lock_like,
    make_schema,
    names_of_options,
    own_annotations,
    resolve_hints,
)
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.pytree import register_pytree

_OPTIONS = ("shadow", "frozen")
_NOT_REQUIRED = (typing.NotRequired, typing_extensions.NotRequired)


class TypedTensorDict(TensorDict, metaclass=FieldsMeta):
    """A tensordict whose subclasses declare their keys, as ``typing.TypedDict`` does.

    Each annotation ``key: type`` declares a key, which is an attribute as well; an annotation
    ``NotRequired[type]`` or a default makes it optional. Subclasses inherit keys. Types are for
    readers and type checkers; values are not converted.

    Options, as ``class X(TypedTensorDict, frozen=True)`` or ``class X(TypedTensorDict["frozen"])``:

    - ``shadow``: a key may have the name of a method, which it hides as an attribute.
    - ``frozen``: the constructor locks the instance.

    Args:
        source: the entries as a mapping or tensordict, which is not checked for missing keys.
        batch_size: leading dimensions ``(*B,)`` of every leaf.
        device: every leaf is moved there.
        names: a name or ``None`` for each batch dimension.
        non_blocking: let moves between devices run asynchronously.
        lock: lock the result.
        **entries: the entries, instead of `source`.

    Raises:
        TypeError: if a required key is missing among `entries`, or one is not declared.
        AttributeError: at the class statement, if a key has the name of a method.

    Example:
        >>> from typing import NotRequired
        >>> class State(TypedTensorDict):
        ...     obs: torch.Tensor
        ...     reward: NotRequired[torch.Tensor]
        >>> state = State(obs=torch.zeros(3, 2), batch_size=[3])
        >>> state.obs is state["obs"], "reward" in state
        (True, False)
    """

    __slots__ = ()
    _shadow = _frozen = False
    __tensorclass_schema__: Any = make_schema(known=None)
    __expected_keys__: frozenset[str] = frozenset()
    __required_keys__: frozenset[str] = frozenset()
    __optional_keys__: frozenset[str] = frozenset()

    def __init__(
        self,
        source: Any = None,
        *,
        batch_size: Any = None,
        device: Any = None,
        names: Any = None,
        non_blocking: bool | None = None,
        lock: bool = False,
        **entries: Any,
    ) -> None:
        if source is None:
            defaults = self.__tensorclass_schema__.defaults
            source = entries if defaults is None else {**defaults, **entries}
            _check_keys(type(self), source, allows_more=False)
        elif entries:
            raise TypeError(
                f"expected the entries of {type(self).__name__} either as one mapping or as "
                f"keyword arguments, found both: move {sorted(entries)} into the mapping"
            )
        super().__init__(source, batch_size, device, names, non_blocking=non_blocking)
        if lock or self._frozen:
            self.lock_()

    def __init_subclass__(cls, shadow: bool | None = None, frozen: bool | None = None) -> None:
        """Declare the keys of a subclass."""
        super().__init_subclass__()
        for option, value in (("_shadow", shadow), ("_frozen", frozen)):
            if value is not None:
                setattr(cls, option, value)
        if "_is_blank" in cls.__dict__:
            return  # made by __class_getitem__: a class to derive from
        _declare(cls)
        kinds.announce(cls)
        register_pytree(cls)

    def __class_getitem__(cls, item: Any) -> Any:
        """Return a base class with options set, as in ``TypedTensorDict["frozen"]``."""
        options = names_of_options(item, _OPTIONS)
        if options is None:
            raise ValueError(
                f"Unknown TypedTensorDict option {item!r}: expected options out of {_OPTIONS}"
            )
        namespace: dict[str, Any] = {"__module__": __name__, "_is_blank": True}
        namespace.update({f"_{option}": True for option in options})
        return FieldsMeta(f"{cls.__name__}_{'_'.join(options)}", (cls,), namespace)

    @classmethod
    def _make(
        cls, source: Any, batch_size: Any = None, device: Any = None, names: Any = None
    ) -> Self:
        plain: Any = TensorDict(source, batch_size, device, names)
        return cls._from_entries(plain._entries, plain._batch_size, plain._device, plain._names)

    @classmethod
    def from_tensordict(cls, td: Any, *, check: bool = True) -> Self:
        """Return an instance with the entries of a tensordict: the same tensors, no copy.

        Later writes to either do not show in the other. Keys that are not declared stay.

        Args:
            td: a tensordict of any kind.
            check: raise if a required key is missing.

        Raises:
            TypeError: if a required key is missing (with `check`), or `td` is no tensordict.
        """
        if not isinstance(td, TensorDictMethods):
            raise TypeError(
                f"expected a tensordict to make {cls.__name__} of, found {type(td).__name__}: "
                "use from_dict for a mapping"
            )
        source: Any = td
        if check:
            _check_keys(cls, source._entries, allows_more=True)
        result: Any = cls._from_entries(
            source._entries.copy(), source._batch_size, source._device, source._names
        )
        if source._is_locked:
            lock_like(result, source)
        return result  # type: ignore[no-any-return]


def _check_keys(cls: Any, keys: Any, allows_more: bool) -> None:
    missing = [key for key in cls.__tensorclass_schema__.names if key in cls.__required_keys__]
    missing = [key for key in missing if key not in keys]
    if missing:
        raise TypeError(
            f"expected all required keys of {cls.__name__}, found missing required field(s) "
            f"{missing}: pass them, or declare them NotRequired"
        )
    unknown = [key for key in keys if key not in cls.__expected_keys__]
    if unknown and not allows_more:
        raise TypeError(
            f"expected keys out of {list(cls.__tensorclass_schema__.names)} for {cls.__name__}, "
            f"found unexpected field(s) {unknown}: declare them"
        )


def _declare(cls: Any) -> None:
    """Work out the keys of a class, and make their properties."""
    own = {
        key: hint
        for key, hint in own_annotations(cls).items()
        if not key.startswith("_") and not _is_class_var(hint)
    }
    defaults = {key: cls.__dict__[key] for key in own if key in cls.__dict__}
    bases = [base for base in reversed(cls.__mro__[1:]) if issubclass(base, TypedTensorDict)]
    if not cls._shadow:
        inherited = {key for base in bases for key in base.__expected_keys__}
        for key in own:
            if hasattr(TypedTensorDict, key) and key not in inherited:
                raise AttributeError(
                    f"expected a key of {cls.__name__} that is no attribute of tensordicts, found "
                    f"{key!r}, which shadows a TensorDictBase attribute: rename it, or set the "
                    "option shadow"
                )
    own = resolve_hints(cls, own, caller_scope("tdcompile.tensordict"))
    hints: dict[str, Any] = {}
    all_defaults: dict[str, Any] = {}
    for base in bases:
        hints.update(base.__tensorclass_schema__.hints)
        all_defaults.update(base.__tensorclass_schema__.defaults or {})
    for key in own:
        all_defaults.pop(key, None)
    hints.update(own)
    all_defaults.update(defaults)
    cls.__tensorclass_schema__ = make_schema(
        names=tuple(hints), known=None, hints=hints, defaults=all_defaults or None
    )
    cls.__expected_keys__ = frozenset(hints)
    cls.__optional_keys__ = frozenset(
        key for key, hint in hints.items() if key in all_defaults or _is_not_required(hint)
    )
    cls.__required_keys__ = cls.__expected_keys__ - cls.__optional_keys__
    for key in own:
        setattr(cls, key, _key_property(key))


def _is_class_var(hint: Any) -> bool:
    if isinstance(hint, str):
        return hint.partition("[")[0].rpartition(".")[2] == "ClassVar"
    return hint is typing.ClassVar or typing.get_origin(hint) is typing.ClassVar


def _is_not_required(hint: Any) -> bool:
    if isinstance(hint, str):
        return hint.partition("[")[0].rpartition(".")[2] == "NotRequired"
    return typing.get_origin(hint) in _NOT_REQUIRED


def _key_property(key: str) -> property:
    def read(self: Any) -> Any:
        entries = self._entries
        if key not in entries:
            raise AttributeError(
                f"expected a value at {key!r}, found the field of {type(self).__name__} declared "
                f"but not set: assign it first"
            )
        return entries[key]

    def write(self: Any, value: Any) -> None:
        self.set(key, value)

    return property(read, write, doc=f"The entry at {key!r}.")
