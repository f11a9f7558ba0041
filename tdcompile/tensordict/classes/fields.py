"""Declared fields: what a class of tensordicts with attributes knows about its entries.

Key names: :class:`Schema` (one record a class, by :func:`make_schema`), :class:`FieldsMeta` (no
instance dictionary), :func:`resolve_hints`, :func:`option_flags`, :func:`own_annotations`.

Invariant: a schema is complete before the first instance of its class is made; only annotations
that named something not there yet are worked out later. All that a class with fields has beyond its
methods and options is in it.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

OPTIONS = ("autocast", "nocast", "frozen", "tensor_only", "shadow", "skip_post_init_on_rebuild")
# At most one of these says how values are converted.
_EXCLUSIVE = ("autocast", "nocast", "tensor_only")


class Schema:
    """What a class declares; a subclass of this is at ``cls.__tensorclass_schema__``.

    It is a class and not an instance, so that a trace reads its attributes as constants; classes
    are kept in attributes and not in dictionaries, so that a trace knows them.
    """

    names: tuple[str, ...] = ()
    """The fields, in the order of their declaration."""
    known: frozenset[str] | None = frozenset()
    """The same as a set; ``None`` where other keys are allowed, too."""
    hints: dict[str, Any] = {}  # noqa: RUF012  # replaced in each subclass
    """The annotation of each field; a string where it names something not there yet."""
    kinds: Any = None
    """A class with one attribute a field: the class in its annotation, or ``None``."""
    collections: frozenset[str] = frozenset()
    """The fields whose annotation allows a tensordict; with `kinds`, see ``casts.hint_class``."""
    own: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    """Annotations and defaults of the class itself, without those of its bases."""
    defaults: dict[str, Any] | None = None
    """Values of keys that a constructor does not get; ``None`` if `model` knows them."""
    model: Any = None
    """A plain dataclass with the same fields and nothing else."""
    runs_post_init: bool = False
    """Whether a new instance made of existing entries calls ``__post_init__``."""


def make_schema(**attributes: Any) -> Any:
    """Return a subclass of :class:`Schema` with these attributes."""
    return type("Schema", (Schema,), {"kinds": type("Kinds", (), {}), **attributes})


class FieldsMeta(type):
    """Class of classes with fields: their instances have no ``__dict__`` unless one is asked for.

    An attribute that is neither a field nor a property can so not be set by mistake.
    """

    def __new__(  # noqa: D102
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> Any:
        namespace.setdefault("__slots__", ())
        return super().__new__(mcs, name, bases, namespace)


def option_flags(cls: Any, options: dict[str, Any]) -> frozenset[str]:
    """Return the names of the options that hold for a class: those given, else those of its bases.

    Raises:
        TypeError: if an option is unknown or two exclude each other.
    """
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise TypeError(
            f"expected options out of {OPTIONS} for {cls.__name__}, found {unknown}: remove them"
        )
    flags = {
        name for name in OPTIONS if (options[name] if name in options else getattr(cls, f"_{name}"))
    }
    clash = [name for name in _EXCLUSIVE if name in flags]
    if len(clash) > 1:
        raise TypeError(
            f"expected at most one of {_EXCLUSIVE} for {cls.__name__}, found {clash}: "
            f"{clash[0]} is exclusive with {clash[1]}"
        )
    return frozenset(flags)


def names_of_options(item: Any, allowed: Iterable[str]) -> tuple[str, ...] | None:
    """Return the options in square brackets as in ``TensorClass["nocast"]``; ``None`` if none."""
    items = item if isinstance(item, tuple) else (item,)
    return items if items and all(name in allowed for name in items) else None


def own_annotations(cls: type) -> dict[str, Any]:
    """Return the annotations of a class itself, unevaluated."""
    return dict(inspect.get_annotations(cls))


def resolve_hints(cls: type, annotations: dict[str, Any], scope: dict[str, Any]) -> dict[str, Any]:
    """Return annotations with strings evaluated; those that name something unknown stay strings.

    Args:
        cls: the class, which may name itself.
        annotations: annotations by field.
        scope: local names at the place of the class statement.
    """
    hints: dict[str, Any] = {}
    for name, hint in annotations.items():
        if isinstance(hint, str):
            module = sys.modules.get(cls.__module__)
            # An annotation may be any text; one that says nothing is no error.
            with contextlib.suppress(Exception):
                # It is evaluated as typing.get_type_hints does.
                hint = eval(hint, getattr(module, "__dict__", {}), {**scope, cls.__name__: cls})
        hints[name] = hint
    return hints


def caller_scope(package: str) -> dict[str, Any]:
    """Return the local names of the nearest caller outside `package` (a prefix of module names)."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(package):
        frame = frame.f_back
    scope: dict[str, Any] = {}
    while frame is not None and frame.f_locals is not frame.f_globals:
        scope = {**frame.f_locals, **scope}
        # A class body stands in a function or a class, whose names its annotations may use.
        frame = frame.f_back if "__qualname__" in frame.f_locals else None
    return scope


def lock_like(result: Any, td: Any) -> None:
    """Lock an instance with the entries of a locked tensordict, and note where these live."""
    result.lock_()
    record = getattr(td, "_memory", None)
    if record is not None:
        result._memory = record
