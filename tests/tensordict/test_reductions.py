"""Reductions on both packages."""

from __future__ import annotations

import pytest
import tensordict as oracle
import torch
from pairs import assert_same, build, describe

import tdcompile.tensordict as ours
from tdcompile import TensorDict
from tdcompile.errors import TensorDictIndexError
from tdcompile.tensordict.reductions import REDUCTION_BY_NAME, REDUCTION_OPS, normalise_dims

OPS = [pytest.param(op.name, id=op.name) for op in REDUCTION_OPS]
WITH_FEATURE = [op.name for op in REDUCTION_OPS if op.takes_feature]
# (*B,) only, so that reduce=True can join the leaves along a batch dimension
NAMED = {"names": ["t", "b"], "device": "cpu"}


def flat(package):
    nested = package.TensorDict({"x": torch.arange(6.0).reshape(3, 2) - 2}, batch_size=[3, 2])
    values = {"b": torch.tensor([[3.0, 1.0], [0.5, 7.0], [2.0, 2.5]]), "n": nested}
    return package.TensorDict(values, batch_size=[3, 2])


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"dim": None},
        {"dim": 0},
        {"dim": 1},
        {"dim": -1},
        {"dim": -2},
        {"dim": 2},
        {"dim": -3},
        {"dim": 0, "keepdim": True},
        {"dim": -1, "keepdim": True},
        {"reduce": False},
    ],
    ids=str,
)
def test_reduction_matches_oracle(name, kwargs):
    # The oracle loses the names of nested tensordicts in amin and amax.
    named = {} if name in ("amin", "amax") else NAMED
    assert_same(lambda p: getattr(build(p, **named).lock_(), name)(**kwargs))


@pytest.mark.parametrize(
    "name", [op.name for op in REDUCTION_OPS if op.takes_dims and op.takes_feature]
)
@pytest.mark.parametrize("dim", [(0, 1), (1, 0), (-1, 0), (0,)], ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_reduction_tuple_of_dims_matches_oracle(name, dim, keepdim):
    assert_same(lambda p: getattr(build(p), name)(dim=dim, keepdim=keepdim))


@pytest.mark.parametrize("name", ["prod", "amin", "amax"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reduction_tuple_of_dims_reduces_them_one_by_one(name, keepdim):
    td = build(ours)
    result = getattr(td, name)(dim=(0, -1), keepdim=keepdim)
    wanted = getattr(getattr(td, name)(1, keepdim), name)(0, keepdim)
    assert result.batch_size == wanted.batch_size
    torch.testing.assert_close(result["a"], wanted["a"])


def test_min_tuple_of_dims_raises():
    with pytest.raises(TypeError, match="one dimension"):
        build(ours).min(dim=(0, 1))


@pytest.mark.parametrize("name", WITH_FEATURE)
def test_reduction_feature_matches_oracle(name):
    assert_same(lambda p: getattr(build(p, **NAMED).select("a", "n"), name)(dim="feature"))


@pytest.mark.parametrize("name", ["amin", "max"])
def test_reduction_feature_not_offered_raises(name):
    with pytest.raises(ValueError, match="feature"):
        getattr(build(ours), name)(dim="feature")


@pytest.mark.parametrize("name", [op.name for op in REDUCTION_OPS if not op.gives_indices])
def test_reduction_keepdim_without_dim_keeps_ones(name):
    result = getattr(build(ours), name)(keepdim=True)
    assert result.batch_size == result["n"].batch_size == (1, 1)
    assert result["a"].shape == (1, 1, 1)
    if name != "prod":  # the oracle drops the trailing dimensions there
        assert_same(lambda p: getattr(build(p), name)(keepdim=True))


@pytest.mark.parametrize("name", ["amin", "amax"])
def test_reduction_extrema_keep_names_of_nested(name):
    assert getattr(build(ours, **NAMED), name)(dim=0)["n"].names == ["b"]


@pytest.mark.parametrize("keepdim", [False, True])
def test_quantile_tuple_of_dims_reduces_all_of_them(keepdim):
    result = build(ours).quantile(0.5, dim=(0, 1), keepdim=keepdim)
    assert result.batch_size == ((1, 1) if keepdim else ())
    flat_leaf = build(ours)["a"].flatten(0, 1)
    torch.testing.assert_close(result["a"].flatten(), flat_leaf.quantile(0.5, 0))


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(
    "kwargs", [{}, {"dim": 0}, {"dim": -1}, {"dim": 0, "keepdim": True}], ids=str
)
def test_reduction_of_all_leaves_matches_oracle(name, kwargs):
    mine = getattr(flat(ours), name)(reduce=True, **kwargs)
    theirs = getattr(flat(oracle), name)(reduce=True, **kwargs)
    # Sums of several leaves round in the order of the leaves.
    torch.testing.assert_close(tuple(mine) if isinstance(mine, tuple) else mine, as_plain(theirs))


def as_plain(value):
    return tuple(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_reduction_of_all_features_matches_oracle(name):
    td = build(ours)
    mine = getattr(td, name)(dim="feature", reduce=True)
    torch.testing.assert_close(mine, getattr(build(oracle), name)(dim="feature", reduce=True))


def test_reduction_of_all_leaves_without_leaves_raises():
    with pytest.raises(ValueError, match="at least one tensor"):
        TensorDict({}, [3]).sum(reduce=True)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "nansum", "nanmean"])
def test_reduction_dtype_matches_oracle(name):
    assert_same(lambda p: getattr(build(p), name)(dim=0, dtype=torch.float64))
    assert_same(lambda p: getattr(build(p), name)(dtype=torch.float64))


@pytest.mark.parametrize("name", ["std", "var"])
@pytest.mark.parametrize("kwargs", [{}, {"dim": 0}], ids=str)
def test_reduction_correction_matches_oracle(name, kwargs):
    assert_same(lambda p: getattr(build(p), name)(correction=0, **kwargs))


def test_reduction_unknown_keyword_raises():
    with pytest.raises(TypeError, match="correction"):
        build(ours).sum(correction=1)


@pytest.mark.parametrize("name", ["sum", "mean", "std", "var"])
def test_reduction_key_transform_renames(name):
    assert_same(lambda p: getattr(build(p), name)(0, key_transform=lambda key: f"{key}_{name}"))


@pytest.mark.parametrize("name", ["min", "max"])
def test_reduction_without_indices_matches_oracle(name):
    assert_same(lambda p: getattr(build(p), name)(0, return_indices=False))


def test_reduction_non_tensor_entry_is_carried():
    td = TensorDict({"s": "x", "a": torch.ones(3, 2)}, [3, 2])
    result = td.sum(dim=0)
    assert result["s"] == "x"
    assert result.get("s").batch_size == (2,)
    assert td.sum(reduce=True) == 6


def test_reduction_nested_further_batch_dims_stay():
    nested = TensorDict({"x": torch.ones(3, 2, 5)}, [3, 2])
    assert TensorDict({"n": nested}, [3]).sum(0)["n"].batch_size == (2,)


@pytest.mark.parametrize("name", ["cummin", "cummax"])
@pytest.mark.parametrize("kwargs", [{}, {"return_indices": False}, {"reduce": True}], ids=str)
@pytest.mark.parametrize("dim", [0, -1, 2])
def test_cumulative_matches_oracle(name, kwargs, dim):
    assert_same(lambda p: getattr(flat(p), name)(dim, **kwargs))


@pytest.mark.parametrize(
    "call",
    [
        lambda td: td.quantile(0.5),
        lambda td: td.quantile(0.3, 0),
        lambda td: td.quantile(0.3, -1, True),
        lambda td: td.quantile(torch.tensor([0.1, 0.5]), 0),
        lambda td: td.quantile(torch.tensor([0.1, 0.5])),
        lambda td: td.quantile(0.5, dim="feature"),
        lambda td: td.quantile(0.5, 0, interpolation="nearest"),
        lambda td: td.quantile(0.5, reduce=True),
        lambda td: td.softmax(0),
        lambda td: td.softmax(-1),
        lambda td: td.softmax(2),
        lambda td: td.softmax(0, torch.float64),
        lambda td: td.logsumexp(0),
        lambda td: td.logsumexp(),
        lambda td: td.logsumexp(-1, True),
        lambda td: td.logsumexp((0, 1)),
        lambda td: td.logsumexp(2),
        lambda td: td.norm(),
        lambda td: td.norm(dtype=torch.float64),
        lambda td: td.norm(key_transform=lambda key: key + "_"),
    ],
)
def test_further_reductions_match_oracle(call):
    assert_same(lambda p: call(build(p)))


@pytest.mark.parametrize("name", ["all", "any"])
@pytest.mark.parametrize("args", [(), (None,), (0,), (-1,), (2,)], ids=str)
@pytest.mark.parametrize("threshold", [-1.0, 0.5, 100.0])
def test_truth_matches_oracle(name, args, threshold):
    assert_same(lambda p: getattr(build(p).apply(lambda leaf: leaf > threshold), name)(*args))


def test_truth_without_leaves_is_that_of_nothing():
    td = TensorDict({"s": "x"}, [3])
    assert td.all() is True
    assert td.any() is False


def test_bool_raises_and_names_ways_out():
    with pytest.raises(RuntimeError) as info:
        bool(build(ours))
    assert "is_empty" in str(info.value)
    assert ".all()" in str(info.value)


@pytest.mark.parametrize("dim", [2, -3])
def test_dim_out_of_range_raises_and_says_range(dim):
    with pytest.raises(TensorDictIndexError) as info:
        build(ours).sum(dim)
    assert "[-2, 2)" in str(info.value)
    assert str(dim) in str(info.value)


def test_normalise_dims_sorts_and_counts_from_the_left():
    assert normalise_dims((-1, 0), 3) == (0, 2)


def test_table_rows_are_methods():
    for name in REDUCTION_BY_NAME:
        assert getattr(TensorDict, name).__name__ == name
    assert describe(build(ours).sum(0)) == describe(torch.sum(build(ours), 0))


@pytest.mark.parametrize("name", ["all", "any"])
@pytest.mark.parametrize("dim", [(0, 1), (1,), (-1, 0)], ids=str)
def test_truth_over_several_dims_reduces_each(name, dim):
    values = torch.tensor([[[True, False], [True, True]], [[True, True], [False, True]]])
    td = TensorDict({"a": values}, batch_size=[2, 2])
    found = getattr(td, name)(dim=dim)
    expected = getattr(torch, name)(values, dim=tuple(d % 2 for d in dim))
    assert torch.equal(found["a"], expected)
    assert found.batch_size == torch.Size([2] * (2 - len(dim)))


def test_truth_over_no_dims_is_refused():
    td = TensorDict({"a": torch.ones(2, dtype=torch.bool)}, batch_size=[2])
    with pytest.raises(IndexError, match="at least one dimension"):
        td.all(dim=())


def test_logsumexp_into_an_empty_tensordict_fills_it():
    td = ours.TensorDict({"a": torch.ones(3, 2), "n": {"x": torch.zeros(3)}}, batch_size=[3])
    out = td.logsumexp(dim=0).empty()
    assert td.logsumexp(dim=0, out=out) is out
    torch.testing.assert_close(out["n", "x"], torch.zeros(3).logsumexp(0))
    leaf = out["a"]
    td.logsumexp(dim=0, out=out)
    assert out["a"] is leaf
