"""Keys: what may name an entry, and how a key path is normalised and printed.

Key names: ``NestedKey`` (a string or a possibly nested tuple of strings), :func:`unravel_key`,
:func:`unravel_key_list`, :func:`unravel_key_to_tuple`, :func:`format_key` (for messages),
``NO_DEFAULT`` (tells an omitted default from ``None``).

Invariant: a normalised key path is a non-empty flat tuple of strings; a key of length one and the
string in it name the same entry.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Literal

from tdcompile.errors import InvalidKeyError

# mypy knows recursive aliases only through a quoted name.
NestedKey = str | tuple["NestedKey", ...]

KEY_SEPARATOR = "."
"""What joins the parts of a key path in flat state dicts and in ``flatten_keys`` by default."""


class _Omitted(Enum):
    NO_DEFAULT = "no default"


# An enumeration member is a constant to TorchDynamo; a bare ``object()`` would be guarded.
NO_DEFAULT: Final = _Omitted.NO_DEFAULT
NoDefault = Literal[_Omitted.NO_DEFAULT]


def is_nested_key(key: Any) -> bool:
    """Tell whether `key` is a string or a non-empty, possibly nested tuple of strings."""
    if isinstance(key, str):
        return True
    if not isinstance(key, tuple) or len(key) == 0:
        return False
    return all(isinstance(part, str) or is_nested_key(part) for part in key)


def is_flat(key: tuple[Any, ...]) -> bool:
    """Tell whether the parts of a tuple are strings, as in a normalised key path."""
    for part in key:  # noqa: SIM110  # all() with a generator takes three times as long
        if not isinstance(part, str):
            return False
    return True


def unravel_key_to_tuple(key: Any) -> tuple[str, ...]:
    """Return the key path of `key` as a flat tuple of strings.

    Raises:
        InvalidKeyError: if `key` is neither a string nor a non-empty, possibly nested tuple of
            strings.

    Example:
        >>> unravel_key_to_tuple(("a", ("b", "c")))
        ('a', 'b', 'c')
    """
    if isinstance(key, str):
        return (key,)
    if isinstance(key, tuple) and len(key) > 0 and is_flat(key):
        return key
    parts: list[str] = []
    _collect_parts(key, key, parts)
    return tuple(parts)


def _collect_parts(part: Any, whole: Any, out: list[str]) -> None:
    if isinstance(part, str):
        out.append(part)
        return
    if not isinstance(part, tuple) or len(part) == 0:
        raise invalid_key(whole, part)
    for inner in part:
        _collect_parts(inner, whole, out)


def unravel_key(key: Any) -> str | tuple[str, ...]:
    """Return the shortest form of `key`: a string, or a flat tuple of two strings or more.

    Raises:
        InvalidKeyError: as :func:`unravel_key_to_tuple`.

    Example:
        >>> unravel_key((("a",),)), unravel_key(("a", ("b",)))
        ('a', ('a', 'b'))
    """
    if isinstance(key, str):
        return key
    path = unravel_key_to_tuple(key)
    return path[0] if len(path) == 1 else path


def unravel_key_list(keys: Any) -> list[str | tuple[str, ...]]:
    """Return :func:`unravel_key` of each element of a list or tuple of keys.

    Raises:
        TypeError: if `keys` is neither a list nor a tuple.
        InvalidKeyError: if an element is no key.

    Example:
        >>> unravel_key_list(["a", ("a", ("b",))])
        ['a', ('a', 'b')]
    """
    if not isinstance(keys, (list, tuple)):
        raise TypeError(
            f"expected a list or a tuple of keys, found {keys!r} of type {type(keys).__name__}: "
            "wrap a single key in a list"
        )
    return [unravel_key(key) for key in keys]


def invalid_key(key: Any, part: Any = NO_DEFAULT) -> InvalidKeyError:
    """Make the error for something that is no key; `part` is the offending piece of `key`."""
    found = key if part is NO_DEFAULT else part
    where = "" if found is key else f" inside {key!r}"
    return InvalidKeyError(
        "expected a key (NestedKey: a string or a non-empty, possibly nested tuple of strings); "
        f"found {found!r} of type {type(found).__name__}{where}"
    )


def format_key(path: Any) -> str:
    """Print a key path as it is written in code: ``'a'`` or ``('n', 'x')``."""
    if isinstance(path, tuple) and len(path) == 1:
        return repr(path[0])
    return repr(path)


def format_entry(path: Any) -> str:
    """Print the subscript that reads a key path: ``td["n", "x"]``."""
    parts = path if isinstance(path, tuple) else (path,)
    quoted = ", ".join('"' + part.replace('"', '\\"') + '"' for part in parts)
    return f"td[{quoted}]"
