"""``TensorDictState``: the state of a dense tensordict, declared once for all parts of the class.

Key names: :class:`TensorDictState`.

Invariant: only ``dense.py`` has slots; the parts of the class (mixins) use what is declared here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Self

    import torch


class TensorDictState:
    """Base of the mixins that make up ``TensorDict``; see its slots for what each attribute is."""

    __slots__ = ()

    # What a class with fields declares, see fields.py.
    __tensorclass_schema__: Any = None
    # Which leaves a cast to a dtype is for, unless the call says; a tensorclass may have one.
    _cast_filter: Any = None

    if TYPE_CHECKING:
        _dense: type[Any]  # the dense kind itself, for what is nested or plain
        _entries: dict[str, Any]
        _batch_size: torch.Size
        _device: torch.device | None
        _names: tuple[str | None, ...] | None
        _is_locked: bool

        @classmethod
        def _from_entries(
            cls,
            entries: dict[str, Any],
            batch_size: torch.Size,
            device: torch.device | None = None,
            names: tuple[str | None, ...] | None = None,
        ) -> Self: ...
