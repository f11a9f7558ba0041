"""The leaf-wise table: it is complete, it looks up what it should, and its shape rules hold."""

from __future__ import annotations

import pytest
import tensordict as oracle
import torch

from tdcompile import TensorDict
from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict.leafwise import (
    LEAFWISE_BY_NAME,
    LEAFWISE_BY_OPERATOR,
    LEAFWISE_BY_TORCH_FUNCTION,
    LEAFWISE_OPS,
    align_leaves,
    align_operand,
    broadcast_batch_size,
    pad_features,
)

OPS = [pytest.param(op, id=op.name) for op in LEAFWISE_OPS]
ORACLE_DUNDERS = [
    "abs",
    "add",
    "and",
    "invert",
    "mod",
    "mul",
    "neg",
    "or",
    "pow",
    "radd",
    "rand",
    "rmul",
    "ror",
    "rpow",
    "rsub",
    "rtruediv",
    "rxor",
    "sub",
    "truediv",
    "xor",
    "iadd",
    "imul",
    "ipow",
    "isub",
    "itruediv",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
]
ORACLE_METHODS = [
    "abs",
    "acos",
    "add",
    "addcdiv",
    "addcmul",
    "asin",
    "atan",
    "bitwise_and",
    "ceil",
    "clamp",
    "clamp_max",
    "clamp_min",
    "cos",
    "cosh",
    "div",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "frac",
    "isfinite",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "lerp",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "logical_and",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "neg",
    "pow",
    "reciprocal",
    "round",
    "rsub",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "sub",
    "tan",
    "tanh",
    "trunc",
    "abs_",
    "acos_",
    "add_",
    "addcdiv_",
    "addcmul_",
    "asin_",
    "atan_",
    "ceil_",
    "clamp_max_",
    "clamp_min_",
    "cos_",
    "cosh_",
    "div_",
    "erf_",
    "erfc_",
    "exp_",
    "expm1_",
    "floor_",
    "frac_",
    "lerp_",
    "log_",
    "log10_",
    "log1p_",
    "log2_",
    "maximum_",
    "minimum_",
    "mul_",
    "neg_",
    "pow_",
    "reciprocal_",
    "round_",
    "sigmoid_",
    "sign_",
    "sin_",
    "sinh_",
    "sqrt_",
    "sub_",
    "tan_",
    "tanh_",
    "trunc_",
]


@pytest.mark.parametrize("name", ORACLE_METHODS)
def test_table_method_of_oracle_has_row(name):
    assert hasattr(oracle.TensorDict, name)
    assert name in LEAFWISE_BY_NAME
    assert callable(getattr(TensorDict, name))


@pytest.mark.parametrize("stem", ORACLE_DUNDERS)
def test_table_operator_of_oracle_has_row(stem):
    assert hasattr(oracle.TensorDict, f"__{stem}__")
    assert f"__{stem}__" in LEAFWISE_BY_OPERATOR
    assert f"__{stem}__" in dir(TensorDict)


def test_table_names_are_unique():
    names = [op.name for op in LEAFWISE_OPS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("op", OPS)
def test_row_describes_its_operands(op):
    assert len(op.operands) == op.arity - 1
    assert LEAFWISE_BY_NAME[op.name] is op
    assert LEAFWISE_BY_TORCH_FUNCTION[op.function] is op
    assert op.reflected_operator is None or op.operator_function is not None
    if op.inplace is not None:
        assert hasattr(torch.Tensor, op.inplace)
        assert LEAFWISE_BY_NAME[op.inplace_name] is op


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.subtract, "sub"),
        (torch.true_divide, "div"),
        (torch.Tensor.add, "add"),
        (torch.Tensor.__and__, "bitwise_and"),
        (torch.Tensor.pow, "pow"),
        (torch.remainder, "mod"),
        (torch.clip, "clamp"),
    ],
)
def test_lookup_torch_function_and_alias_finds_row(function, name):
    assert LEAFWISE_BY_TORCH_FUNCTION[function].name == name


def test_lookup_inplace_torch_function_is_absent():
    assert torch.Tensor.add_ not in LEAFWISE_BY_TORCH_FUNCTION


@pytest.mark.parametrize(
    ("operand", "batch_dims", "leaf_ndim", "expected"),
    [
        ((), 1, 3, ()),
        ((3,), 1, 1, (3,)),
        ((3,), 1, 3, (3, 1, 1)),
        ((5, 3), 1, 2, (5, 3, 1)),
        ((7,), 0, 2, (7, 1, 1)),
    ],
)
def test_align_operand_appends_one_for_each_feature_dim(operand, batch_dims, leaf_ndim, expected):
    value = torch.ones(operand)
    aligned = align_operand(value, batch_dims, leaf_ndim)
    assert aligned.shape == expected
    assert aligned.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("shapes", "batch_dims", "expected"),
    [
        (((3, 4), (3, 4)), (1, 1), ((3, 4), (3, 4))),
        (((3, 4), (3,)), (1, 1), ((3, 4), (3, 1))),
        (((2, 1), (2, 1, 5)), (2, 2), ((2, 1, 1), (2, 1, 5))),
        (((3, 4), (4,)), (1, 0), ((3, 4), (4,))),
        (((3, 4), (3, 4)), (1, 0), ((3, 4), (3, 4))),
        (((1, 4), (5, 4)), (1, 0), ((1, 1, 4), (5, 4))),
        (((3, 4), (2, 3, 4)), (1, 2), ((3, 4), (2, 3, 4))),
    ],
)
def test_align_leaves_meets_batch_with_batch(shapes, batch_dims, expected):
    aligned = align_leaves([torch.ones(shape) for shape in shapes], batch_dims)
    assert tuple(tuple(leaf.shape) for leaf in aligned) == expected


def test_pad_features_inserts_after_batch():
    assert pad_features(torch.ones(3, 4), 1, 3).shape == (3, 1, 1, 4)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (((3,), (2, 3)), (2, 3)),
        (((3, 1), (1, 4)), (3, 4)),
        (((), (5,)), (5,)),
        (((2, 1, 1), (3,), (4, 1)), (2, 4, 3)),
        (((0,), (1,)), (0,)),
    ],
)
def test_broadcast_batch_size_agrees_with_torch(shapes, expected):
    sizes = [torch.Size(shape) for shape in shapes]
    assert broadcast_batch_size(*sizes) == expected == torch.broadcast_shapes(*sizes)


def test_broadcast_batch_size_mismatch_raises_and_says_shapes():
    with pytest.raises(TensorDictShapeError) as info:
        broadcast_batch_size(torch.Size([3]), torch.Size([4]))
    assert "(3,) and (4,)" in str(info.value)
    assert "td.apply" in str(info.value)
