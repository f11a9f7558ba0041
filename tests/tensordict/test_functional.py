"""Torch functions on tensordicts on both packages."""

from __future__ import annotations

import warnings

import pytest
import tensordict as oracle
import torch
from pairs import assert_same, both, build, describe

import tdcompile
import tdcompile.tensordict as ours
from tdcompile import TensorDict
from tdcompile.errors import KeyMismatchError, TensorDictIndexError, TensorDictShapeError
from tdcompile.tensordict.functional import METHOD_FUNCTIONS, TORCH_FUNCTIONS, cat, stack
from tdcompile.tensordict.leafwise import LEAFWISE_OPS

NAMED = {"names": ["t", "b"], "device": "cpu"}
MASK = torch.tensor([[True, False], [False, False], [True, True]])


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3, 3])
def test_stack_dim_matches_oracle(dim):
    assert_same(lambda p: torch.stack([build(p, **NAMED), build(p) + 1], dim))


@pytest.mark.parametrize("dim", [0, 1, -1, -2, 2, 3])
def test_cat_dim_matches_oracle(dim):
    assert_same(lambda p: torch.cat([build(p, **NAMED), build(p) + 1], dim))


@pytest.mark.parametrize("function", [torch.stack, torch.cat])
@pytest.mark.parametrize("dim", [-1, -2, -3])
def test_join_negative_dim_is_that_of_batch(function, dim):
    td = build(ours)
    batch_dims = 3 if function is torch.stack else 2
    if dim < -batch_dims:
        with pytest.raises(TensorDictIndexError):
            function([td, td], dim)
        return
    result = function([td, td], dim)
    assert describe(result) == describe(function([td, td], dim + batch_dims))
    for key in ("a", "b", ("n", "x")):
        assert result[key].shape[: len(result.batch_size)] == result.batch_size


@pytest.mark.parametrize("dim", [-4, 3])
def test_stack_dim_out_of_range_raises_and_says_range(dim):
    with pytest.raises(TensorDictIndexError) as info:
        torch.stack([build(ours)] * 2, dim)
    assert "[-3, 2]" in str(info.value)


def test_cat_without_batch_dims_raises():
    td = TensorDict({"a": torch.ones(3)}, [])
    with pytest.raises(TensorDictIndexError):
        torch.cat([td, td])
    assert torch.stack([td, td])["a"].shape == (2, 3)


def test_cat_different_lengths_adds_them():
    td = build(ours)
    result = torch.cat([td, td[:, :1]], -1)
    assert result.batch_size == result["n"].batch_size == (3, 3)


@pytest.mark.parametrize("function", [torch.stack, torch.cat, TensorDict.stack, TensorDict.cat])
def test_join_keeps_order_names_device_and_not_lock(function):
    first, second = build(ours, **NAMED).lock_(), build(ours, **NAMED).lock_()
    result = function([first, second])
    assert list(result.keys()) == ["b", "a", "n"]
    assert result.names[-1] == "b"
    assert result.is_cpu
    assert not result.is_locked


@pytest.mark.parametrize("function", [stack, cat], ids=["stack", "cat"])
@pytest.mark.parametrize(
    ("others", "words"),
    [
        pytest.param({"a": 1}, ["['b']", "[]"], id="missing"),
        pytest.param({"a": 1, "b": 1, "z": 1}, ["['z']", "[]"], id="further"),
        pytest.param({"a": 1, "y": 1}, ["['b']", "['y']"], id="other"),
        pytest.param({"a": 1, "b": {"x": 1}}, ['td["b"]', "one kind"], id="kind"),
    ],
)
def test_join_different_keys_raises_and_names_them(function, others, words):
    tds = [
        TensorDict({"a": 1, "b": 1}, []).expand(3),
        TensorDict(others, []).expand(3),
    ]
    with pytest.raises(KeyMismatchError) as info:
        function(tds)
    assert all(word in str(info.value) for word in words)


def test_join_different_nested_keys_names_path():
    left, right = build(ours), build(ours)
    del right["n", "x"]
    with pytest.raises(KeyMismatchError) as info:
        torch.stack([left, right])
    assert 'td["n"]' in str(info.value)


def test_stack_different_batch_sizes_or_leaf_shapes_raise():
    td = build(ours)
    with pytest.raises(TensorDictShapeError, match="number 1"):
        torch.stack([td, td[:2]])
    other = build(ours).set("a", torch.ones(3, 2, 9))
    with pytest.raises(TensorDictShapeError) as info:
        torch.stack([td, other])
    assert 'td["a"]' in str(info.value)


def test_cat_different_other_dim_raises():
    with pytest.raises(TensorDictShapeError, match="dimension 1"):
        torch.cat([build(ours), build(ours)[:2]], 1)


@pytest.mark.parametrize("function", [stack, cat], ids=["stack", "cat"])
def test_join_nothing_or_tensors_raise(function):
    with pytest.raises(RuntimeError, match="at least one"):
        function([])
    with pytest.raises(TypeError, match="number 1"):
        function([build(ours), torch.ones(3, 2)])


@pytest.mark.parametrize("function", [torch.stack, torch.cat])
def test_join_out_is_updated_in_place(function):
    td = build(ours)
    out = function([td, td]).zero_()
    leaf = out["a"]
    assert function([td, td], out=out) is out
    assert out["a"] is leaf
    assert describe(out) == describe(function([td, td]))


def test_join_out_of_other_batch_size_raises():
    with pytest.raises(TensorDictShapeError, match="out"):
        torch.stack([build(ours)] * 2, out=build(ours))


@pytest.mark.parametrize("alias", [torch.concat, torch.concatenate])
def test_cat_alias_concatenates(alias):
    td = build(ours)
    assert describe(alias([td, td])) == describe(torch.cat([td, td]))


@pytest.mark.parametrize(
    "call",
    [
        lambda td: torch.clone(td),
        lambda td: torch.zeros_like(td),
        lambda td: torch.ones_like(td, dtype=torch.int32),
        lambda td: torch.full_like(td, 3.0),
        lambda td: torch.zeros_like(td, device="cpu"),
        lambda td: torch.unbind(td, 0),
        lambda td: torch.split(td, 1),
        lambda td: torch.split(td, [1, 2], 0),
        lambda td: torch.chunk(td, 2),
        lambda td: torch.unsqueeze(td, -1),
        lambda td: torch.permute(td, (1, 0)),
        lambda td: torch.transpose(td, 0, 1),
        lambda td: torch.flatten(td),
        lambda td: torch.reshape(td, (6,)),
        lambda td: torch.gather(td, 0, torch.zeros(1, 2, dtype=torch.long)),
        lambda td: torch.sum(td, 0),
        lambda td: torch.mean(td, 0),
        lambda td: torch.std(td, dim=0),
        lambda td: torch.masked_select(td, MASK),
        lambda td: torch.add(td, 1),
        lambda td: torch.add(td, td, alpha=2),
        lambda td: torch.clamp(td, 0.1, 0.5),
        lambda td: torch.lerp(td, td * 2, 0.5),
        lambda td: torch.isnan(td),
        lambda td: torch.tanh(td),
    ],
)
@pytest.mark.parametrize("locked", [False, True])
def test_torch_function_matches_oracle(call, locked):
    def program(package):
        td = build(package, **NAMED)
        return call(td.lock_() if locked else td)

    assert_same(program)


@pytest.mark.parametrize("function", [torch.empty_like, torch.rand_like, torch.randn_like])
def test_like_keeps_shape_names_and_lock(function):
    mine, theirs = both(lambda p: function(build(p, **NAMED).lock_()))
    for key in ("batch_size", "device", "names", "is_locked"):
        assert mine[key] == theirs[key]


@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in LEAFWISE_OPS])
def test_leafwise_torch_function_is_the_method(op):
    integer = op.name.startswith("bitwise")
    td = build(ours, torch.int64 if integer else torch.float32)
    others = [td] * (op.arity - 1)
    assert describe(op.function(td, *others)) == describe(getattr(td, op.name)(*others))
    if op.arity == 2:
        t = td["b"]
        wanted = {
            key: op.function(t.reshape(3, 2, *[1] * (td[key].ndim - 2)), td[key]) for key in "ab"
        }
        result = op.function(t, td)
        for key, leaf in wanted.items():
            assert describe(result[key]) == describe(leaf)


def test_leafwise_torch_function_keywords():
    td = build(ours)
    assert describe(torch.sub(input=td, other=td, alpha=2)) == describe(td.sub(td, alpha=2))
    assert describe(torch.addcmul(td["b"], td, td, value=2)["b"]) == describe(
        torch.addcmul(td["b"], td["b"], td["b"], value=2)
    )
    with pytest.raises(TypeError, match="beta"):
        torch.add(td, 1, beta=2)


@pytest.mark.parametrize("function", [torch.linalg.inv, torch.cumsum], ids=["inv", "cumsum"])
def test_torch_function_without_meaning_raises_type_error(function):
    with pytest.raises(TypeError):
        function(build(ours), 0) if function is torch.cumsum else function(build(ours))


@pytest.mark.parametrize("name", METHOD_FUNCTIONS)
def test_method_function_has_method(name):
    assert getattr(torch, name) in TORCH_FUNCTIONS
    assert callable(getattr(TensorDict, name))


def test_where_condition_tensordict_chooses_leaf_by_leaf():
    td = build(ours)
    result = torch.where(td > 0.5, td, 0.0)
    assert describe(result["a"]) == describe(torch.where(td["a"] > 0.5, td["a"], 0.0))


@pytest.mark.parametrize(
    "call",
    [
        lambda td: td.stack_tensors("a", "c", out_key="s"),
        lambda td: td.stack_tensors("a", "c", out_key="s", dim=1, keep_entries=True),
        lambda td: td.cat_tensors("a", "c", out_key="s", dim=1),
        lambda td: td.cat_tensors("a", "c", out_key="a", dim=1, keep_entries=True),
        lambda td: td.stack_from_tensordict(),
        lambda td: td.stack_from_tensordict(1),
        lambda td: td.cat_from_tensordict(dim=1),
        lambda td: td.cat_from_tensordict(sorted=["c", "a"]),
        lambda td: td.cat_from_tensordict(sorted=False),
    ],
)
def test_join_of_entries_matches_oracle(call):
    def program(package):
        c, a = torch.zeros(3, 4), torch.ones(3, 4)
        return call(package.TensorDict({"c": c, "a": a}, batch_size=[]))

    assert_same(program)


def test_oracle_negative_cat_dim_is_contradictory_ours_is_not():
    """The reason for W4: leaves without trailing dimensions and leaves with them part ways."""
    mine = torch.cat([build(ours), build(ours)], -2)
    assert mine["a"].shape == (6, 2, 4)
    assert mine.batch_size == (6, 2)
    with pytest.raises(TensorDictIndexError):
        torch.cat([build(ours), build(ours)], -3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        broken = torch.cat([build(oracle), build(oracle)], -3)
    assert broken["a"].shape[:2] != broken.batch_size


@pytest.mark.parametrize("nested", [False, True])
def test_autograd_grad_has_the_structure_of_the_inputs(nested):
    x = torch.ones(3, requires_grad=True)
    unused = torch.ones(3, requires_grad=True)
    td = TensorDict({"x": x, "s": "text"}, batch_size=[3])
    if nested:
        td["n"] = {"y": torch.full((3,), 2.0, requires_grad=True)}
    out = td * 3
    grads = torch.autograd.grad(out, td, torch.ones_like(out))
    assert type(grads) is TensorDict
    assert all((leaf == 3).all() for leaf in grads.values(True, True))
    assert list(grads.keys(True)) == list(td.keys(True))
    td["unused"] = unused
    assert "unused" not in torch.autograd.grad((x * 2).sum(), td, allow_unused=True)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("name", ["l1_loss", "mse_loss", "smooth_l1_loss"])
def test_loss_of_two_tensordicts_matches_oracle(name, reduction):
    def run(package):
        td = package.TensorDict(
            {"a": torch.arange(6.0).reshape(3, 2), "n": {"x": torch.ones(3)}}, batch_size=[3]
        )
        return getattr(torch.nn.functional, name)(td, td * 2, reduction=reduction)

    found, expected = run(tdcompile), run(oracle)
    assert found.batch_size == expected.batch_size
    for key in (("a",), ("n", "x")):
        torch.testing.assert_close(found[key], expected[key])
    with tdcompile.install():
        compiled = torch.compile(run, backend="eager", fullgraph=True)(tdcompile)
    assert compiled.batch_size == found.batch_size
    torch.testing.assert_close(compiled["n", "x"], found["n", "x"])
