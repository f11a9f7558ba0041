"""Methods and operators of the leaf-wise table on both packages."""

from __future__ import annotations

import operator

import pytest
import tensordict as oracle
import torch
from pairs import assert_same, build, describe

import tdcompile.tensordict as ours
from tdcompile import TensorDict
from tdcompile.errors import KeyMismatchError, TensorDictShapeError
from tdcompile.tensordict.leafwise import LEAFWISE_OPS

INTEGER = {"bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor"}
EXTRA = {op.name for op in LEAFWISE_OPS if not hasattr(oracle.TensorDict, op.name)}
UNARY = [op for op in LEAFWISE_OPS if op.arity == 1]
BINARY = [op for op in LEAFWISE_OPS if op.arity == 2]
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
NAMED = {"names": ["t", "b"], "device": "cpu"}


def ids(ops):
    return [pytest.param(op, id=op.name) for op in ops]


def dtype_of(op):
    # The oracle rounds rsub of floating-point numbers in another order.
    return torch.int64 if op.name in INTEGER or op.name == "rsub" else torch.float32


def operands(dtype):
    return {
        "number": 2,
        "0d": torch.tensor(2, dtype=dtype),
        "int": torch.tensor([[1, 2], [3, 1], [2, 2]]),
        "batch": torch.tensor([[1, 2], [3, 1], [2, 2]], dtype=dtype),
        "last_dim": torch.tensor([1, 2], dtype=dtype),
        "column": torch.tensor([[1], [2], [3]], dtype=dtype),
        "one": torch.tensor([3], dtype=dtype),
        "larger": torch.ones(2, 1, 2, dtype=dtype),
    }


def expected_leaves(function, td, *others):
    """The rule written down once more, leaf by leaf."""
    leaves = {}
    for key in ("b", "a", ("n", "x")):
        leaf = td[key]
        row = []
        for other in others:
            if isinstance(other, torch.Tensor) and other.ndim:
                row.append(other.reshape(other.shape + (1,) * (leaf.ndim - 2)))
            else:
                row.append(other)
        leaves[key] = function(leaf, *row)
    return leaves


@pytest.mark.parametrize("op", ids([op for op in UNARY if op.name not in EXTRA]))
def test_unary_method_matches_oracle(op):
    assert_same(lambda p: getattr(build(p, dtype_of(op), **NAMED).lock_(), op.name)())


@pytest.mark.parametrize("op", ids(UNARY))
def test_unary_method_applies_torch_function(op):
    td = build(ours, dtype_of(op))
    result = getattr(td, op.name)()
    for key, leaf in expected_leaves(op.function, td).items():
        torch.testing.assert_close(result[key], leaf, equal_nan=True)


@pytest.mark.parametrize("op", ids([op for op in UNARY if op.inplace is not None]))
def test_unary_inplace_keeps_storage(op):
    td = build(ours, dtype_of(op))
    before = {key: td[key] for key in ("a", "b", ("n", "x"))}
    wanted = describe(getattr(td, op.name)())
    assert getattr(td, op.inplace_name)() is td
    assert all(td[key] is leaf for key, leaf in before.items())
    assert describe(td) == wanted


@pytest.mark.parametrize("op", ids([op for op in BINARY if op.name not in EXTRA]))
@pytest.mark.parametrize("kind", ["number", "0d", "batch", "last_dim", "larger", "tensordict"])
def test_binary_method_matches_oracle(op, kind):
    if op.name == "logical_and" and kind == "number":
        with pytest.raises(TypeError):
            build(ours).logical_and(2)
        return
    if op.name in INTEGER and kind in ("batch", "last_dim", "larger"):
        # The oracle aligns these with the leaves' last dimensions; see the test below.
        return
    dtype = dtype_of(op)

    def program(package):
        other = build(package, dtype) if kind == "tensordict" else operands(dtype)[kind]
        return getattr(build(package, dtype, **NAMED), op.name)(other)

    assert_same(program)


@pytest.mark.parametrize("op", ids([op for op in BINARY if op.operator is not None]))
@pytest.mark.parametrize("kind", list(operands(torch.float32)))
@pytest.mark.parametrize("side", ["left", "right"])
def test_operator_tensor_on_either_side_aligns_with_batch(op, kind, side):
    dtype = dtype_of(op)
    td = build(ours, dtype, **NAMED)
    other = operands(dtype)[kind]
    function = op.operator_function
    if side == "left":
        result = function(td, other)
        leaves = expected_leaves(function, td, other)
    else:
        result = function(other, td)
        leaves = expected_leaves(lambda leaf, value: function(value, leaf), td, other)
    for key, leaf in leaves.items():
        assert describe(result[key]) == describe(leaf)
    larger = kind == "larger"
    assert result.batch_size == ((2, 3, 2) if larger else (3, 2))
    assert result["n"].batch_size == result.batch_size
    assert result.names == ([None, "t", "b"] if larger else ["t", "b"])
    assert list(result.keys()) == ["b", "a", "n"]


@pytest.mark.parametrize("op", ids([op for op in BINARY if op.operator is not None]))
def test_operator_two_tensordicts_matches_oracle(op):
    dtype = dtype_of(op)
    assert_same(
        lambda p: op.operator_function(build(p, dtype), build(p, dtype) - build(p, dtype) + 1)
    )


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "pow"])
@pytest.mark.parametrize("kind", [*list(operands(torch.float32))[:-1], "tensordict"])
def test_augmented_assignment_matches_oracle_and_keeps_storage(name, kind):
    augment = getattr(operator, f"i{name}")

    def program(package):
        other = build(package) * 0.5 + 1 if kind == "tensordict" else operands(torch.float32)[kind]
        td = build(package, **NAMED).lock_()
        leaf = td["n", "x"]
        assert augment(td, other) is td
        assert td["n", "x"] is leaf
        return td

    assert_same(program)


@pytest.mark.parametrize("op", ids([op for op in BINARY if op.inplace is not None]))
@pytest.mark.parametrize("kind", ["number", "batch", "tensordict"])
def test_binary_inplace_method_matches_out_of_place(op, kind):
    td = build(ours)
    other = build(ours) + 1 if kind == "tensordict" else operands(torch.float32)[kind]
    leaf = td["a"]
    wanted = describe(getattr(td, op.name)(other))
    assert getattr(td, op.inplace_name)(other) is td
    assert td["a"] is leaf
    assert describe(td) == wanted


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv"])
def test_augmented_assignment_operand_made_from_self_uses_old_values(name):
    augment, plain = getattr(operator, f"i{name}"), getattr(operator, name)
    td = build(ours) + 1
    wanted = describe(plain(td, td.apply(lambda leaf: leaf.flip(0))))
    augment(td, td.apply(lambda leaf: leaf.flip(0)))
    assert describe(td) == wanted


def test_augmented_assignment_with_itself_doubles():
    td = build(ours)
    wanted = describe(td * 2)
    td += td
    assert describe(td) == wanted


@pytest.mark.parametrize(
    "operand",
    [
        pytest.param(lambda: torch.ones(2, 3, 2), id="larger"),
        pytest.param(lambda: torch.ones(5), id="mismatch"),
        pytest.param(lambda: build(ours).apply(lambda x: x.unsqueeze(-1)), id="leaf_rank"),
        pytest.param(lambda: build(ours).apply(lambda x: x * 1j), id="complex"),
        pytest.param(lambda: TensorDict({"b": torch.ones(3, 2)}, [3, 2]), id="missing"),
        pytest.param(lambda: build(ours).set("z", torch.ones(3, 2)), id="further"),
    ],
)
def test_inplace_bad_operand_raises_and_changes_nothing(operand):
    td = build(ours)
    before = describe(td)
    with pytest.raises((TensorDictShapeError, KeyMismatchError, RuntimeError)):
        td += operand()
    assert describe(td) == before


@pytest.mark.parametrize(
    ("call", "words"),
    [
        pytest.param(lambda td: td.add_(1.5), ['td["i"]', "torch.int64", "cast"], id="add_"),
        pytest.param(lambda td: td.div_(2), ['td["i"]', "div_", "Use"], id="div_"),
        pytest.param(lambda td: td.sqrt_(), ['td["i"]', "sqrt_", "Use"], id="sqrt_"),
    ],
)
def test_inplace_dtype_too_small_raises_and_changes_nothing(call, words):
    td = TensorDict({"f": torch.ones(3), "i": torch.ones(3, dtype=torch.int64)}, [3])
    before = describe(td)
    with pytest.raises(RuntimeError) as info:
        call(td)
    assert all(word in str(info.value) for word in words)
    assert describe(td) == before


@pytest.mark.parametrize(
    ("left", "right", "path"),
    [
        ({"a": 1, "b": 1}, {"a": 1}, 'td["b"]'),
        ({"a": 1}, {"a": 1, "b": 1}, "['b']"),
        ({"n": {"x": 1, "y": 1}}, {"n": {"x": 1}}, 'td["n", "y"]'),
        ({"n": {"x": 1}}, {"n": {"x": 1, "y": 1}}, 'td["n"]'),
        ({"n": {"x": 1}}, {"n": 1}, 'td["n"]'),
        ({"n": 1}, {"n": {"x": 1}}, 'td["n"]'),
    ],
)
@pytest.mark.parametrize("inplace", [False, True], ids=["out_of_place", "inplace"])
def test_two_tensordicts_other_keys_raise_key_error_with_path(left, right, path, inplace):
    td, other = TensorDict(left, []), TensorDict(right, [])
    with pytest.raises(KeyError) as info:
        td.add_(other) if inplace else td + other
    assert path in str(info.value)


def test_two_tensordicts_key_order_follows_left():
    left = TensorDict({"b": torch.ones(2), "a": torch.ones(2)}, [2])
    right = TensorDict({"a": torch.zeros(2), "b": torch.ones(2)}, [2])
    result = left - right
    assert list(result.keys()) == ["b", "a"]
    assert result["a"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("left", "right"),
    [((3,), (1,)), ((1,), (3,)), ((3,), (2, 3)), ((2, 3), (3,)), ((3,), ()), ((3, 1), (1, 2))],
)
def test_two_tensordicts_batch_sizes_broadcast_like_oracle(left, right):
    def program(package):
        a = package.TensorDict({"k": torch.ones(*left, 4)}, batch_size=left)
        b = package.TensorDict({"k": torch.arange(4.0).expand(*right, 4)}, batch_size=right)
        return a + b

    assert_same(program)


def test_two_tensordicts_fewer_trailing_dims_align_on_batch():
    left = TensorDict({"k": torch.zeros(3, 3)}, [3])
    right = TensorDict({"k": torch.arange(3.0)}, [3])
    assert (left + right)["k"][:, 0].tolist() == [0, 1, 2]
    assert (right + left)["k"][:, 0].tolist() == [0, 1, 2]


def test_two_tensordicts_same_leaves_without_batch_size_meet_as_they_are():
    with_batch = TensorDict({"k": torch.ones(3, 4)}, [3])
    without = TensorDict({"k": torch.ones(3, 4)}, [])
    for result in (with_batch + without, without + with_batch):
        assert result["k"].shape == (3, 4)
        assert result.batch_size == (3,)


def test_batch_size_empty_takes_shape_of_operand():
    assert_same(lambda p: p.TensorDict({"a": torch.ones(4)}, batch_size=[]) + torch.ones(3))


def test_nested_further_batch_dims_stay():
    nested = TensorDict({"x": torch.zeros(3, 2, 5)}, [3, 2])
    td = TensorDict({"n": nested}, [3])
    result = td + torch.arange(3)
    assert result["n"].batch_size == (3, 2)
    assert result["n", "x"][:, 0, 0].tolist() == [0, 1, 2]
    assert (td + torch.ones(4, 3))["n"].batch_size == (4, 3, 2)


@pytest.mark.parametrize("scalar", [2, 2.5, True, 1j], ids=repr)
@pytest.mark.parametrize("dtype", [torch.int32, torch.float64, torch.bool])
def test_type_promotion_follows_torch(scalar, dtype):
    td = TensorDict({"a": torch.ones(3, dtype=dtype)}, [3])
    assert (td * scalar)["a"].dtype == (td["a"] * scalar).dtype
    weak = torch.tensor(scalar)
    assert (td * weak)["a"].dtype == (td["a"] * weak).dtype
    assert (scalar * td)["a"].dtype == (scalar * td["a"]).dtype


@pytest.mark.parametrize(
    "call",
    [
        lambda td: td.add(td, alpha=2),
        lambda td: td.sub(torch.ones(3, 2), alpha=2),
        lambda td: td.rsub(5.0, alpha=2),
        lambda td: td.rsub(td, alpha=2),
        lambda td: td.add_(torch.ones(3, 2), alpha=2),
        lambda td: td.add(1, alpha=2),
    ],
)
def test_alpha_matches_oracle(call):
    assert_same(lambda p: call(build(p)))


def test_unknown_keyword_raises():
    with pytest.raises(TypeError, match="rounding"):
        build(ours).add(1, rounding="floor")


def test_div_rounding_mode_floors():
    td = TensorDict({"a": torch.tensor([7, -7])}, [2])
    assert td.div(2, rounding_mode="floor")["a"].tolist() == [3, -4]


# default=


@pytest.mark.parametrize("name", ["add", "sub", "mul", "maximum"])
@pytest.mark.parametrize("default", ["intersection", torch.tensor(2.0)], ids=["intersection", "2"])
def test_default_matches_oracle(name, default):
    def program(package):
        left = package.TensorDict(
            {"b": torch.ones(3), "n": {"x": torch.ones(3), "y": torch.ones(3)}}, batch_size=[3]
        )
        right = package.TensorDict(
            {"d": torch.full((3,), 5.0), "n": {"x": torch.full((3,), 7.0)}}, batch_size=[3]
        )
        return getattr(left, name)(right, default=default)

    mine, theirs = describe(program(ours)), describe(program(oracle))
    # The oracle sorts nested entries behind the others; ours keep the order of the left side.
    assert dict(mine["entries"]) == dict(theirs["entries"])


def test_default_number_stands_for_missing_leaf():
    left = TensorDict({"a": torch.ones(2), "b": torch.ones(2)}, [2])
    right = TensorDict({"a": torch.ones(2), "c": torch.ones(2)}, [2])
    result = left.sub(right, default=3.0)
    assert list(result.keys()) == ["a", "b", "c"]
    assert result["b"].tolist() == [-2, -2]
    assert result["c"].tolist() == [2, 2]


def test_default_unknown_word_raises():
    with pytest.raises(ValueError, match="intersection"):
        build(ours).add(build(ours), default="union")


# comparisons


@pytest.mark.parametrize("other", [None, "x", [1]], ids=repr)
def test_equality_foreign_object_is_plain_bool(other):
    td = build(ours)
    assert (td == other) is False
    assert (td != other) is True
    with pytest.raises(TypeError):
        assert td < other


def test_equality_dict_compares_entries():
    td = TensorDict({"a": torch.tensor([1, 2])}, [2])
    assert (td == {"a": torch.tensor([1, 3])})["a"].tolist() == [True, False]


def test_tensordict_is_not_hashable_like_oracle():
    for package in (ours, oracle):
        with pytest.raises(TypeError):
            hash(build(package))


def test_comparison_keeps_names_and_device():
    result = build(ours, **NAMED).lock_() > 1
    assert (result.names, result.device) == (["t", "b"], torch.device("cpu"))
    assert not result.is_locked


@pytest.mark.parametrize(
    ("call", "locked"),
    [
        (lambda td: td + 1, True),
        (lambda td: 1 - td, True),
        (lambda td: td + td, True),
        (lambda td: td.exp(), True),
        (lambda td: td + torch.ones(3, 2), False),
        (lambda td: td.clamp(0, 1), False),
        (lambda td: td.lerp(td, 0.5), True),
        (lambda td: td == td, False),
    ],
)
def test_lock_of_result_matches_oracle(call, locked):
    for package in (ours, oracle):
        assert call(build(package).lock_()).is_locked is locked
    assert call(build(ours).lock_())["n"].is_locked is locked


@pytest.mark.parametrize("operand", [None, "x", [1, 2]], ids=repr)
@pytest.mark.parametrize("name", ["add", "pow", "iadd"])
def test_operator_foreign_operand_raises_type_error(operand, name):
    with pytest.raises(TypeError):
        getattr(operator, name)(build(ours), operand)


# non-tensor entries


def with_text(package, text="x"):
    return package.TensorDict({"s": text, "a": torch.ones(3)}, batch_size=[3])


@pytest.mark.parametrize(
    "call",
    [
        lambda td: td + 1,
        lambda td: 1 - td,
        lambda td: td + torch.ones(3),
        lambda td: td + td,
        lambda td: td.add_(1),
        lambda td: td < 2,
        lambda td: td.exp(),
        lambda td: td.lerp(td, 0.5),
    ],
)
def test_non_tensor_entry_passes_through(call):
    td = with_text(ours)
    entry = td.get("s")
    result = call(td)
    assert result.get("s").data is entry.data
    assert (result.get("s") is entry) == (result is td)
    assert list(result.keys()) == ["s", "a"]
    assert call(with_text(oracle))["s"] == result["s"]


def test_non_tensor_entry_missing_on_other_side_passes_through():
    assert (with_text(ours) + TensorDict({"a": torch.ones(3)}, [3]))["s"] == "x"


@pytest.mark.parametrize("text", ["x", "y"])
@pytest.mark.parametrize("name", ["eq", "ne"])
def test_non_tensor_entry_equality_matches_oracle(text, name):
    assert_same(lambda p: getattr(operator, name)(with_text(p), with_text(p, text)))


def test_non_tensor_entry_larger_batch_gets_it():
    assert (with_text(ours) + torch.ones(2, 3)).get("s").batch_size == (2, 3)


# ternary


@pytest.mark.parametrize(
    "call",
    [
        lambda td, t: td.lerp(t, 0.5),
        lambda td, t: td.lerp(t, t),
        lambda td, t: td.lerp(td + 1, t),
        lambda td, t: td.lerp(td + 1, torch.tensor(0.5)),
        lambda td, t: td.lerp(td + 1, td),
        lambda td, t: td.lerp(torch.ones(2, 3, 2), 0.5),
        lambda td, t: td.lerp_(td + 1, 0.5),
        lambda td, t: td.addcmul(td, td, value=2),
        lambda td, t: td.addcmul(t, td),
        lambda td, t: td.addcmul(td, t),
        lambda td, t: td.addcdiv(td + 1, td + 1, 2),
        lambda td, t: td.addcdiv_(td + 1, td + 1, value=2),
        lambda td, t: td.addcmul_(t, t, value=2),
        lambda td, t: td.clamp(0, 0.5),
        lambda td, t: td.clamp(min=0.2),
        lambda td, t: td.clamp(max=0.2),
        lambda td, t: td.clamp(t, t),
        lambda td, t: td.clamp(td * 0.5, td * 0.7),
        lambda td, t: td.clamp(),
        lambda td, t: td.lerp(td.select("b"), 0.5),
    ],
)
def test_ternary_matches_oracle(call):
    t = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    assert_same(lambda p: call(build(p), t))


def test_clamp_mixed_operands_work():
    td = build(ours)
    result = td.clamp(torch.zeros(3, 2), td * 0.5)
    assert describe(result) == describe(td * 0.5)


def test_ternary_out_is_updated():
    out = build(ours)
    leaf = out["a"]
    assert build(ours).clamp(0, 0.1, out=out) is out
    assert out["a"] is leaf
    assert leaf.max() <= 0.1


@pytest.mark.parametrize("args", [(), (1.0,), (1.0, 2.0, 3.0, 4.0)], ids=len)
def test_lerp_wrong_number_of_operands_raises(args):
    with pytest.raises(TypeError):
        build(ours).lerp(*args)
