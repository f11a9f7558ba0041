"""Functions that make tensordicts.

Key names: :func:`make_tensordict`, :func:`from_dict`, :func:`from_any`, :func:`fromkeys`,
and the other class methods of ``TensorDict`` that make one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdcompile.tensordict.dense import TensorDict

if TYPE_CHECKING:
    from torch import nn

from_dict = TensorDict.from_dict
from_any = TensorDict.from_any
from_namedtuple = TensorDict.from_namedtuple
from_pytree = TensorDict.from_pytree
from_struct_array = TensorDict.from_struct_array
from_tuple = TensorDict.from_tuple
fromkeys = TensorDict.fromkeys
from_modules = TensorDict.from_modules


def make_tensordict(
    input_dict: Any = None,
    batch_size: Any = None,
    device: Any = None,
    auto_batch_size: bool | None = None,
    **kwargs: Any,
) -> TensorDict:
    """Return a tensordict made of a mapping or of keyword arguments, see ``TensorDict.from_dict``.

    Example:
        >>> make_tensordict(a=torch.zeros(3, 4), auto_batch_size=True).batch_size
        torch.Size([3, 4])
    """
    return TensorDict.from_dict(
        kwargs if input_dict is None else input_dict,
        batch_size=batch_size,
        device=device,
        auto_batch_size=auto_batch_size,
    )


def from_module(
    module: nn.Module,
    as_module: bool = False,
    lock: bool = True,
    use_state_dict: bool = False,
    filter_empty: bool = True,
) -> Any:
    """Return the parameters and buffers of a module, locked; see ``TensorDict.from_module``.

    Example:
        >>> from_module(torch.nn.Linear(2, 3)).is_locked
        True
    """
    return TensorDict.from_module(module, as_module, lock, use_state_dict, filter_empty)
