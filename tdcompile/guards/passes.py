"""The narrowing passes: each drops guards under one written assumption.

Key names: :class:`NarrowingPass` (a pass with its assumption), :data:`PASSES` (all, in order).

Invariant: a pass looks at guard entries only. It has a test that it pays and a test in which the
condition it no longer checks changes and the result is still right (``tests/guards``). Guards that
are never made (a write guards no key) are the trackers' business; passes are for guards that
upstream makes on our behalf.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tdcompile.guards.entries import GuardEntry

__all__ = ["PASSES", "NarrowingPass"]

# Switches are there to be changed: their modules are no constants.
_OWN_MODULE = re.compile(r"__import_tdcompile(?!_dot_tensordict_dot_(legacy|switches)$)(_dot_|$)")
_BUILTINS = "__builtins_dict__"
# An expression that begins at torch's own registry, by either of the paths that Dynamo takes to it,
# or at its keys. A dictionary of the program that has the same name is somebody else's.
_PYTREE_REGISTRY = re.compile(
    r"(list\(dict\.keys\()?"
    r"(__import__\('torch'\)\.utils\._pytree|G\['__import_torch_dot_utils_dot__pytree'\])"
    r"\.SUPPORTED_NODES\b"
)


@dataclass(frozen=True, slots=True)
class NarrowingPass:
    """One pass.

    Attributes:
        name: identifies it in options, reports and the audit.
        assumption: what must hold for the pass to be sound.
        unsound_when: a program that breaks the assumption.
        drops: pure function: entries -> for each, whether it is dropped.
    """

    name: str
    assumption: str
    unsound_when: str
    drops: Callable[[Sequence[GuardEntry]], list[bool]]


def _library_globals(entries: Sequence[GuardEntry]) -> list[bool]:
    return [_OWN_MODULE.match(entry.root) is not None for entry in entries]


def _builtins(entries: Sequence[GuardEntry]) -> list[bool]:
    return [entry.is_own and entry.root.startswith(_BUILTINS) for entry in entries]


def _pytree_registry(entries: Sequence[GuardEntry]) -> list[bool]:
    return [_PYTREE_REGISTRY.match(entry.name) is not None for entry in entries]


def _implied_presence(entries: Sequence[GuardEntry]) -> list[bool]:
    read = {
        (parent, key)
        for entry in entries
        if entry.kind not in ("DICT_CONTAINS", "DICT_NOT_CONTAINS")
        for parent, key in entry.parents
        if key is not None
    }
    return [
        entry.kind == "DICT_CONTAINS" and (entry.source, entry.key) in read for entry in entries
    ]


PASSES: tuple[NarrowingPass, ...] = (
    NarrowingPass(
        name="library_globals",
        assumption=(
            "the functions, classes and tables of the tdcompile package stay what they are after"
            " import, so a guard whose expression begins at one of its modules always holds"
        ),
        unsound_when="a program replaces a function of tdcompile between two calls",
        drops=_library_globals,
    ),
    NarrowingPass(
        name="own_builtins",
        assumption=(
            "the builtin functions that methods of tdcompile call (len, isinstance, ...) are not"
            " rebound to functions of another behaviour after the first call"
        ),
        unsound_when="a program assigns to builtins.len between two calls",
        drops=_builtins,
    ),
    NarrowingPass(
        name="pytree_registry",
        assumption=(
            "a registration of a further pytree node class does not change how the classes that a"
            " trace flattened are flattened; the trace looked up those only"
        ),
        unsound_when="a program registers a class that a trace flattened as a leaf",
        drops=_pytree_registry,
    ),
    NarrowingPass(
        name="implied_presence",
        assumption=(
            "a guard that reads a dictionary by a key fails where the key is absent, so a guard on"
            " the presence of the same key in the same dictionary adds nothing"
        ),
        unsound_when="never: the read is itself the check",
        drops=_implied_presence,
    ),
)
