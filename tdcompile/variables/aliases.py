"""One tensordict by two paths: the trace has one tracker, and each call must have one object.

Key names: :func:`make_dupe_guard` (makes the replacement of Dynamo's).

The other direction, two objects that must stay two, is ``_compat.guards.require_distinct``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tdcompile._compat import dynamo as seam
from tdcompile._compat.guards import same_object_guard

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["make_dupe_guard"]

_OWN_GLOBAL = re.compile(r"G\['__import_tdcompile(_dot_|'])")


def make_dupe_guard(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make the guard that Dynamo leaves out: of a local and a global path to one tensordict."""

    def replacement(path: Any, known_path: Any, *args: Any, **kwargs: Any) -> Any:
        if _OWN_GLOBAL.match(path.name) or _OWN_GLOBAL.match(known_path.name):
            # What our modules hold is constant by contract; the other path has its own guards.
            return None
        guard = original(path, known_path, *args, **kwargs)
        if guard is None:
            guard = same_object_guard(seam.current_translator(), known_path, path)
        return guard

    return replacement
