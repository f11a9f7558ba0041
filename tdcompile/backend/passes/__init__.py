"""FX passes of the backend, one a file.

Key names: :data:`PASS_NAMES` (what there is, in the order in which it runs), and
:mod:`tdcompile.backend.passes.manager` (what runs them).

This file imports nothing, so that checking options stays cheap.
"""

from __future__ import annotations

PASS_NAMES: tuple[str, ...] = ("merge_views",)
"""Names of the passes, in the order in which they run; each is the module of that name."""
