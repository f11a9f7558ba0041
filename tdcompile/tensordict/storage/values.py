"""Non-tensor values in files: JSON where it keeps them as they are, pickle only when asked for.

Key names: :func:`tuple_paths` (whether JSON keeps a value), :func:`restore_tuples`,
:func:`dump_json`, :func:`dump_pickle`, :func:`find_class`.

Invariant: a value comes back of the types it had, or it was not saved.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

from tdcompile.errors import UnsafeFileError
from tdcompile.tensordict.keys import format_entry
from tdcompile.tensordict.kinds import announced
from tdcompile.tensordict.storage.paths import bad_field

_SCALARS = (str, int, float, bool, type(None))
_MAX_DEPTH = 100


def tuple_paths(value: Any) -> list[list[Any]] | None:
    """Return where in a value JSON needs to be told of tuples; ``None`` if JSON does not keep it.

    JSON keeps text, numbers, ``None``, lists, and dictionaries with keys that are text; a tuple
    comes back as a list, so the paths of tuples are written down, inner ones first.

    Example:
        >>> tuple_paths({"a": [1, (2,)]}), tuple_paths([1j])
        ([['a', 1]], None)
    """
    paths: list[list[Any]] = []
    return paths if _collect(value, [], paths) else None


def _collect(value: Any, path: list[Any], out: list[list[Any]]) -> bool:
    # Exact types: a subclass (an enum, a numpy number) would come back as its base.
    kind = type(value)
    if kind in _SCALARS:
        return True
    if len(path) > _MAX_DEPTH:
        return False
    if kind is dict:
        items: Any = value.items()
        if any(type(key) is not str for key in value):
            return False
    elif kind in (list, tuple):
        items = enumerate(value)
    else:
        return False
    if not all(_collect(item, [*path, key], out) for key, item in items):
        return False
    if kind is tuple:
        out.append(path)
    return True


def restore_tuples(value: Any, paths: Any, name: str) -> Any:
    """Make tuples of the lists at `paths`, the reverse of :func:`tuple_paths`."""
    if not isinstance(paths, list):
        raise bad_field(name, "paths of tuples", paths)
    holder = [value]
    for path in paths:
        target: Any = holder
        try:
            steps: list[Any] = [0, *path]
            last = steps.pop()
            for key in steps:
                target = target[key]
            if not isinstance(target, list | dict) or not isinstance(target[last], list):
                raise TypeError
            target[last] = tuple(target[last])
        except (TypeError, KeyError, IndexError, ValueError):
            raise bad_field(name, "the path of a list", path) from None
    return holder[0]


def dump_json(value: Any) -> bytes:
    """Return metadata as the bytes of a file."""
    return json.dumps(value).encode()


def dump_pickle(value: Any, path: tuple[str, ...], allow_pickle: bool) -> bytes:
    """Pickle a value, if the caller allows it.

    Raises:
        UnsafeFileError: if it does not.
    """
    data = value["data"] if isinstance(value, dict) else value
    if not allow_pickle:
        where = f" at {format_entry(path)}" if path else ""
        raise UnsafeFileError(
            f"expected a value that JSON keeps as it is, found {type(data).__name__}{where}: "
            "pass allow_pickle=True to save it by pickle (loading it needs allow_pickle=True, "
            "too), or exclude the entry"
        )
    return pickle.dumps(value)


def find_class(tag: str) -> Any:
    """Return the class of tensordicts that metadata names, if the program has it.

    It is looked up among the classes that were defined; nothing is imported.
    """
    found = [cls for cls in announced() if str(cls) == tag]
    return found[-1] if found else None
