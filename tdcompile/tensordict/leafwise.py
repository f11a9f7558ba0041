"""The one table of leaf-wise operations: what they are called, what they call, how operands align.

Key names: :class:`LeafwiseOp` (one row), :data:`LEAFWISE_OPS` (the table),
:data:`LEAFWISE_BY_NAME`, :data:`LEAFWISE_BY_OPERATOR`, :data:`LEAFWISE_BY_TORCH_FUNCTION`
(look-ups), :func:`align_operand` and :func:`align_leaves` (shapes), :func:`broadcast_batch_size`
(the batch size of a result).

Symbols: ``*B`` batch dimensions of a tensordict, ``*F`` trailing dimensions of a leaf ``(*B, *F)``.

Invariant: a row describes its operation fully. The eager methods (``arithmetic.py``), the torch
functions (``functional.py``) and the trackers are made from it, the tests run over it; none of them
knows an operation by name.

The shape rule, for every operand of every row, out of place, in place and reflected alike:

- a number or a 0-d tensor meets each leaf as it is;
- a tensor ``(*O,)`` broadcasts against the batch dimensions ``(*B,)`` as if the tensordict were a
  tensor of that shape, and is the same for all trailing dimensions of a leaf;
- another tensordict gives the leaf under the same key; its batch dimensions broadcast against ours,
  its trailing dimensions against those of our leaf;
- the batch size of the result is the broadcast of all batch sizes and operand shapes.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from tdcompile.errors import TensorDictShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class LeafwiseOp:
    """One leaf-wise operation.

    Attributes:
        name: name of the method of a tensordict; the in-place form, if any, is ``name + "_"``.
        function: what is called on each leaf, operands in the order of the call.
        arity: number of tensor or tensordict operands, the tensordict itself included.
        operands: names of the operands after the first.
        optional_operands: operands may be left out (``clamp``); then they are passed as None.
        inplace: name of the method of :class:`torch.Tensor` that does the in-place form, or None.
        operator: dunder of the operator, or None.
        reflected_operator: dunder of the operator with the tensordict on the right, or None.
        inplace_operator: dunder of the augmented assignment, or None.
        operator_function: the function of the :mod:`operator` module; ``f(operand, leaf)`` is the
            reflected form, also for a Python number on the left.
        keywords: further keyword arguments that `function` takes.
        takes_default: the method has ``default=``, for keys that only one side has.
        result: dtype of a result leaf: ``"same"`` follows torch's promotion of the operands,
            ``"float"`` turns integers to floating point, ``"bool"`` is bool.
        keeps_lock: a locked tensordict gives a locked result.
        aliases: other names of `function` in :mod:`torch` and :class:`torch.Tensor`.
        number_function: what is called instead where the second operand is a Python number, or
            None; for functions of torch that take tensors only.
    """

    name: str
    function: Callable[..., Any]
    arity: int = 1
    operands: tuple[str, ...] = ()
    optional_operands: bool = False
    inplace: str | None = None
    operator: str | None = None
    reflected_operator: str | None = None
    inplace_operator: str | None = None
    operator_function: Callable[..., Any] | None = None
    keywords: tuple[str, ...] = ()
    takes_default: bool = False
    result: Literal["same", "float", "bool"] = "same"
    keeps_lock: bool = True
    aliases: tuple[str, ...] = ()
    number_function: Callable[..., Any] | None = None

    @property
    def inplace_name(self) -> str | None:
        """Name of the in-place method of a tensordict, or None."""
        return None if self.inplace is None else f"{self.name}_"


def _unary(
    names: str,
    result: Literal["same", "float", "bool"] = "same",
    inplace: bool = True,
    **fields: Any,
) -> list[LeafwiseOp]:
    """Rows of unary operations whose torch name is the method name."""
    return [
        LeafwiseOp(
            name=name,
            function=getattr(torch, name),
            inplace=f"{name}_" if inplace else None,
            result=result,
            **fields,
        )
        for name in names.split()
    ]


def _binary(
    name: str,
    function: Callable[..., Any],
    symbol: str | None = None,
    operator_function: Callable[..., Any] | None = None,
    *,
    inplace: str | None = None,
    augmented: bool = False,
    **fields: Any,
) -> LeafwiseOp:
    """Row of a binary operation; `symbol` is the dunder's stem (``"add"`` for ``__add__``)."""
    return LeafwiseOp(
        name=name,
        function=function,
        arity=2,
        operands=("other",),
        inplace=inplace,
        operator=None if symbol is None else f"__{symbol}__",
        reflected_operator=None if symbol is None else f"__r{symbol}__",
        inplace_operator=f"__i{symbol}__" if augmented else None,
        operator_function=operator_function,
        takes_default=True,
        **fields,
    )


def _comparison(name: str, operator_function: Callable[..., Any], *aliases: str) -> LeafwiseOp:
    """Row of a comparison; Python reflects it by the mirrored one, so there is no ``__r*__``."""
    return LeafwiseOp(
        name=name,
        function=getattr(torch, name),
        arity=2,
        operands=("other",),
        operator=f"__{name}__",
        operator_function=operator_function,
        result="bool",
        keeps_lock=False,
        aliases=aliases,
    )


LEAFWISE_OPS: tuple[LeafwiseOp, ...] = (
    # unary
    *_unary("abs", operator="__abs__", aliases=("absolute",)),
    *_unary("neg", operator="__neg__", aliases=("negative",)),
    *_unary("ceil floor frac round sign trunc"),
    *_unary("square", inplace=True),
    *_unary(
        "acos asin atan cos cosh erf erfc exp expm1 lgamma log log10 log1p log2 reciprocal rsqrt"
        " sigmoid sin sinh sqrt tan tanh",
        "float",
    ),
    *_unary("isfinite isinf isnan isneginf isposinf isreal", "bool", inplace=False),
    *_unary("bitwise_not", operator="__invert__", inplace=False),
    *_unary("logical_not", "bool", inplace=False),
    # binary
    _binary(
        "add", torch.add, "add", operator.add, inplace="add_", augmented=True, keywords=("alpha",)
    ),
    _binary(
        "sub",
        torch.sub,
        "sub",
        operator.sub,
        inplace="sub_",
        augmented=True,
        keywords=("alpha",),
        aliases=("subtract",),
    ),
    _binary("rsub", torch.rsub, keywords=("alpha",)),
    _binary(
        "mul",
        torch.mul,
        "mul",
        operator.mul,
        inplace="mul_",
        augmented=True,
        aliases=("multiply",),
    ),
    _binary(
        "div",
        torch.div,
        "truediv",
        operator.truediv,
        inplace="div_",
        augmented=True,
        keywords=("rounding_mode",),
        result="float",
        aliases=("divide", "true_divide"),
    ),
    _binary("pow", torch.pow, "pow", operator.pow, inplace="pow_", augmented=True),
    _binary("mod", torch.remainder, "mod", operator.mod, aliases=("remainder",)),
    # torch.Tensor has no maximum_; clamp_min_ is the same function of the same two operands.
    _binary("maximum", torch.maximum, inplace="clamp_min_", number_function=torch.clamp_min),
    _binary("minimum", torch.minimum, inplace="clamp_max_", number_function=torch.clamp_max),
    _binary("clamp_min", torch.clamp_min, inplace="clamp_min_"),
    _binary("clamp_max", torch.clamp_max, inplace="clamp_max_"),
    _binary("bitwise_and", torch.bitwise_and, "and", operator.and_),
    _binary("bitwise_or", torch.bitwise_or, "or", operator.or_, keeps_lock=False),
    _binary("bitwise_xor", torch.bitwise_xor, "xor", operator.xor, keeps_lock=False),
    _binary("logical_and", torch.logical_and, result="bool"),
    _binary("logical_or", torch.logical_or, result="bool"),
    _binary("logical_xor", torch.logical_xor, result="bool"),
    _comparison("eq", operator.eq),
    _comparison("ne", operator.ne, "not_equal"),
    _comparison("lt", operator.lt, "less"),
    _comparison("le", operator.le, "less_equal"),
    _comparison("gt", operator.gt, "greater"),
    _comparison("ge", operator.ge, "greater_equal"),
    # ternary
    LeafwiseOp(
        "addcmul", torch.addcmul, 3, ("other1", "other2"), inplace="addcmul_", keywords=("value",)
    ),
    LeafwiseOp(
        "addcdiv",
        torch.addcdiv,
        3,
        ("other1", "other2"),
        inplace="addcdiv_",
        keywords=("value",),
        result="float",
    ),
    LeafwiseOp("lerp", torch.lerp, 3, ("end", "weight"), inplace="lerp_", result="float"),
    LeafwiseOp(
        "clamp",
        torch.clamp,
        3,
        ("min", "max"),
        True,
        inplace="clamp_",
        keeps_lock=False,
        aliases=("clip",),
    ),
)

LEAFWISE_BY_NAME: dict[str, LeafwiseOp] = {op.name: op for op in LEAFWISE_OPS}
"""Method name, or in-place method name, to row."""
LEAFWISE_BY_NAME.update({f"{op.name}_": op for op in LEAFWISE_OPS if op.inplace is not None})

LEAFWISE_BY_OPERATOR: dict[str, LeafwiseOp] = {
    dunder: op
    for op in LEAFWISE_OPS
    for dunder in (op.operator, op.reflected_operator, op.inplace_operator)
    if dunder is not None
}
"""Dunder (plain, reflected, augmented) to row."""


def _by_torch_function() -> dict[Any, LeafwiseOp]:
    """Every callable of torch that a row stands for, out of place, in the order of its call."""
    found: dict[Any, LeafwiseOp] = {}
    for op in LEAFWISE_OPS:
        found[op.function] = op
        for name in (op.name, *op.aliases, op.operator):
            for owner in (torch, Tensor):
                function = None if name is None else getattr(owner, name, None)
                if function is not None:
                    found.setdefault(function, op)
    return found


LEAFWISE_BY_TORCH_FUNCTION: dict[Any, LeafwiseOp] = _by_torch_function()
"""``torch.add``, ``torch.Tensor.add``, ``torch.Tensor.__add__``, ... to row."""


def align_operand(operand: Tensor, batch_dims: int, leaf_ndim: int) -> Tensor:
    """Give a tensor operand the shape in which torch broadcasts it over the batch of a leaf.

    Args:
        operand: ``(*O,)``, to broadcast against the batch ``(*B,)``.
        batch_dims: length of ``*B``, of the tensordict that the operation was called on (also for
            the leaves of its nested tensordicts).
        leaf_ndim: length of ``(*B, *F)``.

    Returns:
        A view ``(*O, 1, ..., 1)`` with a 1 for each dimension of ``*F``; a 0-d operand is returned
        as it is, so that it keeps its weak part in type promotion.

    Example:
        >>> align_operand(torch.ones(3), 1, 3).shape
        torch.Size([3, 1, 1])
    """
    if operand.ndim > 0:
        for _ in range(leaf_ndim - batch_dims):
            operand = operand.unsqueeze(-1)
    return operand


def pad_features(leaf: Tensor, batch_dims: int, feature_dims: int) -> Tensor:
    """Insert 1s after the batch dimensions of a leaf until it has `feature_dims` trailing ones.

    Returns:
        A view ``(*B, 1, ..., 1, *F)``, or the leaf itself where nothing is to insert.
    """
    for _ in range(feature_dims - (leaf.ndim - batch_dims)):
        leaf = leaf.unsqueeze(batch_dims)
    return leaf


def align_leaves(leaves: Sequence[Tensor], batch_dims: Sequence[int]) -> list[Tensor]:
    """Give the leaves under one key the shapes in which torch broadcasts batch against batch.

    Leaves of one rank meet as they are, unless that would broadcast a trailing dimension of one
    against a batch dimension of another; otherwise those with fewer trailing dimensions get 1s
    after their batch dimensions.

    Args:
        leaves: ``(*B_i, *F_i)`` each.
        batch_dims: length of each ``*B_i``.

    Returns:
        Views (or the leaves themselves), in the order given.

    Example:
        >>> [leaf.shape for leaf in align_leaves([torch.ones(3, 4), torch.ones(3)], [1, 1])]
        [torch.Size([3, 4]), torch.Size([3, 1])]
    """
    if _meet_as_they_are(leaves, batch_dims):
        return list(leaves)
    features = max(leaf.ndim - dims for leaf, dims in zip(leaves, batch_dims, strict=True))
    return [
        pad_features(leaf, dims, features) for leaf, dims in zip(leaves, batch_dims, strict=True)
    ]


def _meet_as_they_are(leaves: Sequence[Tensor], batch_dims: Sequence[int]) -> bool:
    ndim = leaves[0].ndim
    for leaf in leaves:
        if leaf.ndim != ndim:
            return False
    longest = max(batch_dims)
    if min(batch_dims) == longest:
        return True
    # A trailing dimension of the leaf with the shorter batch meets a batch dimension of another
    # one: it must be that very size already, or the result would not lead with the joint batch.
    shape = leaves[list(batch_dims).index(longest)].shape[:longest]
    return all(leaf.shape[:longest] == shape for leaf in leaves)


def broadcast_batch_size(*shapes: torch.Size) -> torch.Size:
    """Broadcast batch sizes and operand shapes.

    Raises:
        TensorDictShapeError: if they do not broadcast.
    """
    result: list[int] = []
    for shape in shapes:
        missing = len(shape) - len(result)
        if missing > 0:
            result = list(shape[:missing]) + result
        offset = len(result) - len(shape)
        for dim, size in enumerate(shape):
            known = result[offset + dim]
            if known != size:
                if known == 1:
                    result[offset + dim] = size
                elif size != 1:
                    raise TensorDictShapeError(
                        "the operands' shapes must broadcast over the batch dimensions; got "
                        + " and ".join(str(tuple(s)) for s in shapes)
                        + ". A tensor operand aligns with the batch size, not with the leaves:"
                        " reshape it, or use td.apply(...) to work on whole leaves."
                    )
    return torch.Size(result)
