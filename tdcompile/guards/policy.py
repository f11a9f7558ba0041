"""The guard-narrowing passes in force, as patches that the plug-in applies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdcompile.patching import PatchSet


def patches() -> tuple[PatchSet, ...]:
    """Return what has to be in force for the narrowing passes to run."""
    return ()
