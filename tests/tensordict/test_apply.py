"""``apply`` and its relatives, fills, masks, copies, gradients and ``new_*``."""

from __future__ import annotations

import pytest
import torch
from pairs import assert_same, build, describe

import tdcompile.tensordict as ours
from tdcompile import TensorDict
from tdcompile.errors import TensorDictShapeError

MASK = torch.tensor([[True, False], [False, False], [True, True]])
NAMED = {"names": ["t", "b"], "device": "cpu"}


def none_for(rank):
    return lambda leaf: None if leaf.ndim == rank else leaf


def partial(package):
    return package.TensorDict({"a": torch.ones(3, 2, 4)}, batch_size=[3, 2])


def with_empty(package):
    empty = package.TensorDict({}, batch_size=[3, 2])
    return package.TensorDict({"a": torch.ones(3, 2), "e": empty}, batch_size=[3, 2])


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda td, p: td.apply(lambda x: x + 1), id="plain"),
        pytest.param(lambda td, p: td.apply(torch.exp), id="torch_function"),
        pytest.param(lambda td, p: td.apply(lambda x: x.sum(0), batch_size=[2]), id="smaller"),
        pytest.param(lambda td, p: td.apply(lambda x: x[None], batch_size=[1, 3, 2]), id="larger"),
        pytest.param(lambda td, p: td.apply(lambda x: x.sum(0)), id="misfit"),
        pytest.param(lambda td, p: td.apply(lambda x: 1.0), id="number_misfit"),
        pytest.param(
            lambda td, p: td.apply(lambda x: x[None], batch_size=[1, 3, 2], names=["u", "v", "w"]),
            id="larger_names",
        ),
        pytest.param(lambda td, p: td.apply(lambda x: x, device="cpu"), id="device"),
        pytest.param(lambda td, p: td.apply(lambda x: x, device=None), id="no_device"),
        pytest.param(lambda td, p: td.apply(lambda x: None), id="none"),
        pytest.param(
            lambda td, p: td.apply(lambda x: None, filter_empty=False), id="none_unfiltered"
        ),
        pytest.param(lambda td, p: td.apply(lambda x: None, filter_empty=True), id="none_filtered"),
        pytest.param(lambda td, p: td.apply(none_for(2)), id="some_none"),
        pytest.param(
            lambda td, p: td.apply(lambda x: None if x.shape[-1] == 5 else x), id="nested_none"
        ),
        pytest.param(
            lambda td, p: td.apply(lambda x: None if x.shape[-1] == 5 else x, filter_empty=False),
            id="nested_none_unfiltered",
        ),
        pytest.param(lambda td, p: with_empty(p).apply(lambda x: x), id="empty"),
        pytest.param(
            lambda td, p: with_empty(p).apply(lambda x: x, filter_empty=True), id="empty_filtered"
        ),
        pytest.param(lambda td, p: td.apply(lambda x, y: x + y, td), id="other"),
        pytest.param(lambda td, p: td.apply(lambda x, y: x + y, partial(p)), id="other_missing"),
        pytest.param(
            lambda td, p: td.apply(
                lambda x, y: x if y is None else x + y, partial(p), default=None
            ),
            id="other_default",
        ),
        pytest.param(lambda td, p: partial(p).apply(lambda x, y: x + y, td), id="other_further"),
        pytest.param(lambda td, p: td.apply(lambda x: x + 1, inplace=True), id="inplace"),
        pytest.param(lambda td, p: td.apply_(lambda x: x.mul_(2)), id="inplace_function"),
        pytest.param(lambda td, p: td.apply(lambda x: x.sum(0), inplace=True), id="inplace_misfit"),
        pytest.param(lambda td, p: td.apply(lambda x: None, inplace=True), id="inplace_none"),
        pytest.param(lambda td, p: td.lock_().apply(lambda x: x, propagate_lock=True), id="lock"),
        pytest.param(lambda td, p: td.lock_().apply(lambda x: x), id="no_lock"),
        pytest.param(
            lambda td, p: td.apply(lambda x: x * 1, call_on_nested=True), id="call_on_nested"
        ),
        pytest.param(
            lambda td, p: td.apply(lambda x: p.TensorDict({"q": x}, batch_size=[3, 2])),
            id="nests",
        ),
        pytest.param(lambda td, p: td.apply(lambda x: x, out=td.clone()), id="out"),
        pytest.param(
            lambda td, p: td.apply(lambda x: x, out=p.TensorDict({}, batch_size=[3, 2])),
            id="out_empty",
        ),
        pytest.param(
            lambda td, p: td.named_apply(lambda n, x: x + len(n), nested_keys=True), id="named"
        ),
        pytest.param(
            lambda td, p: td.named_apply(lambda n, x, y: x if n == "x" else y, td * 2),
            id="named_other",
        ),
    ],
)
def test_apply_matches_oracle(call):
    assert_same(lambda p: call(build(p), p))


@pytest.mark.parametrize("nested_keys", [False, True])
def test_named_apply_gives_keys_in_order(nested_keys):
    seen = []
    build(ours).named_apply(lambda key, _: seen.append(key), nested_keys=nested_keys)
    assert seen == ["b", "a", ("n", "x") if nested_keys else "x"]


def test_apply_names_keep_further_names_of_nested():
    nested = TensorDict({"x": torch.ones(3, 2)}, [3, 2], names=["u", "v"])
    td = TensorDict({"n": nested}, [3], names=["u"])
    assert td.apply(lambda leaf: leaf)["n"].names == ["u", "v"]
    assert td.apply(lambda leaf: leaf, names=["w"])["n"].names == ["w", "v"]


def test_apply_inplace_keeps_storage_and_returns_self():
    td = build(ours).lock_()
    leaf = td["n", "x"]
    assert td.apply_(lambda value: value + 1) is td
    assert td["n", "x"] is leaf
    assert describe(td) == describe(build(ours).lock_().apply(lambda v: v + 1).lock_())


def test_apply_inplace_misfit_changes_nothing():
    td = build(ours)
    before = describe(td)
    with pytest.raises(TensorDictShapeError) as info:
        td.apply_(lambda leaf: leaf + 1 if leaf.ndim == 2 else leaf.repeat(2, 1, 1))
    assert 'td["a"]' in str(info.value)
    assert describe(td) == before


def test_apply_non_tensor_entry_passes_through_and_is_called_on_request():
    td = TensorDict({"s": "x", "a": torch.ones(3)}, [3])
    assert td.apply(lambda leaf: leaf + 1)["s"] == "x"
    seen = []
    td.apply(lambda value: seen.append(type(value).__name__), call_on_nested=True)
    assert seen == ["NonTensorData", "Tensor"]
    smaller = td.apply(lambda leaf: leaf.sum(), batch_size=[])
    assert smaller.get("s").batch_size == ()


def test_apply_is_leaf_stops_at_nested():
    seen = []
    build(ours).apply(lambda value: seen.append(type(value)), is_leaf=lambda kind: True)
    assert seen == [torch.Tensor, torch.Tensor, TensorDict]


def test_apply_unknown_keyword_raises():
    with pytest.raises(TypeError, match="batchsize"):
        build(ours).apply(lambda leaf: leaf, batchsize=[3])


def test_apply_missing_leaf_names_its_path():
    with pytest.raises(KeyError) as info:
        build(ours).apply(lambda x, y: x, partial(ours))
    assert 'td["b"]' in str(info.value)


# fills, masks, copies


@pytest.mark.parametrize(
    "call",
    [
        lambda td: td.fill_("a", 5),
        lambda td: td.fill_(("n", "x"), 5),
        lambda td: td.fill_("z", 5),
        lambda td: td.zero_(),
        lambda td: td.masked_fill(MASK, 7.0),
        lambda td: td.masked_fill_(MASK, 7.0),
        lambda td: td.masked_fill(torch.ones(4, dtype=torch.bool), 7.0),
        lambda td: td.copy_(td.apply(lambda leaf: leaf * 2)),
        lambda td: td.copy_(td.select("a").apply(lambda leaf: leaf * 2)),
        lambda td: td.where(MASK, td * 2),
        lambda td: td.where(MASK, 0.0),
        lambda td: td.where(MASK, torch.tensor(3.0)),
        lambda td: td.where(MASK, td.select("a")),
        lambda td: td.where(MASK, td.select("a"), pad=7),
        lambda td: td.where(MASK, 0.0, out=td.clone()),
        lambda td: td.where(torch.ones(5, dtype=torch.bool), 0.0),
        lambda td: torch.where(MASK, td, 0.0),
        lambda td: torch.where(MASK, 0.0, td),
        lambda td: torch.where(MASK, td * 2, td),
    ],
)
@pytest.mark.parametrize("locked", [False, True])
def test_fill_mask_copy_where_match_oracle(call, locked):
    def program(package):
        td = build(package, **NAMED)
        return call(td.lock_() if locked else td)

    assert_same(program)


def test_fill_nested_fills_all_its_leaves():
    td = build(ours)
    assert td.fill_("n", 5) is td
    assert td["n", "x"].unique().tolist() == [5]


def test_fill_absent_key_lists_keys():
    with pytest.raises(KeyError) as info:
        build(ours).fill_(("n", "z"), 1)
    assert 'td["n", "z"]' in str(info.value)
    assert "['x']" in str(info.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda td: td.copy_(TensorDict({"b": torch.zeros(3, 2), "a": torch.zeros(5)}, [])),
        lambda td: td.masked_fill_(torch.ones(2, 3, 2, dtype=torch.bool), 0.0),
    ],
)
def test_inplace_misfit_raises_and_changes_nothing(call):
    td = build(ours)
    before = describe(td)
    with pytest.raises(TensorDictShapeError):
        call(td)
    assert describe(td) == before


def test_where_tensor_other_aligns_with_batch():
    td = build(ours)
    result = td.where(MASK, torch.zeros(3, 2))
    assert describe(result) == describe(td.where(MASK, 0.0))


def test_where_pad_stands_for_our_missing_leaf():
    td = build(ours, **NAMED)
    result = td.select("a").where(MASK, td, pad=7)
    assert result["b"][MASK].unique().tolist() == [7]
    assert result["n"].names == ["t", "b"]
    assert describe(result["a"]) == describe(td["a"])


# gradients


def differentiable(package):
    td = build(package)
    td["a"].requires_grad_()
    return td


@pytest.mark.parametrize(
    "call",
    [
        lambda td: td.detach(),
        lambda td: td.lock_().detach(),
        lambda td: td.data,
        lambda td: td.detach_(),
        lambda td: td.requires_grad,
        lambda td: td.detach().requires_grad,
        lambda td: td.detach().requires_grad_().requires_grad,
        lambda td: td.grad,
        lambda td: (td["a"].sum().backward(), td.grad)[1],
        lambda td: (td["a"].sum().backward(), td.zero_grad(), td.grad)[2],
        lambda td: (td["a"].sum().backward(), td.zero_grad(set_to_none=False), td.grad)[2],
        lambda td: ((td * 2).sum().backward(), td.grad)[1],
        lambda td: ((td * 2).backward(td.detach()), td.grad)[1],
        lambda td: (
            (td * td).sum().backward(retain_graph=True, inputs=td.select("a")),
            td.grad,
        )[1],
        lambda td: td.contiguous(),
        lambda td: td.is_contiguous(),
    ],
)
def test_gradients_and_storage_match_oracle(call):
    assert_same(lambda p: call(differentiable(p)))


def test_detach_and_data_share_storage():
    td = differentiable(ours)
    for result in (td.detach(), td.data):
        assert result["a"].data_ptr() == td["a"].data_ptr()
        assert not result["a"].requires_grad


def test_contiguous_copies_only_what_needs_it():
    td = TensorDict({"a": torch.ones(3, 4), "t": torch.ones(4, 3).T}, [3])
    assert not td.is_contiguous()
    result = td.contiguous()
    assert result["a"] is td["a"]
    assert result.is_contiguous()
    assert td.contiguous(inplace=True) is td
    assert td.is_contiguous()


# new leaves


@pytest.mark.parametrize(
    "call",
    [
        lambda td: td.new_zeros(5, 6),
        lambda td: td.new_zeros(5),
        lambda td: td.new_zeros([5]),
        lambda td: td.new_zeros(torch.Size([5, 7])),
        lambda td: td.new_zeros(),
        lambda td: td.new_ones((2,), dtype=torch.int32),
        lambda td: td.new_full((2, 2), 7.0),
        lambda td: td.new_full([], 7),
        lambda td: td.new_zeros(2, device="cpu"),
        lambda td: td.new_tensor(td),
        lambda td: td.new_tensor(torch.ones(2, 3)),
    ],
)
def test_new_leaves_match_oracle(call):
    assert_same(lambda p: call(build(p)))


def test_new_empty_has_shape_and_dtype():
    result = build(ours).new_empty(5, dtype=torch.float64)
    assert result.batch_size == (5,)
    assert result["n", "x"].shape == (5, 5)
    assert result.dtype is torch.float64


def test_new_tensor_copies():
    td = build(ours)
    result = td.new_tensor(td)
    assert result["a"].data_ptr() != td["a"].data_ptr()


def test_new_zeros_names_stay_with_the_number_of_dims():
    td = build(ours, **NAMED)
    assert td.new_zeros(5, 6).names == ["t", "b"]
    assert td.new_zeros(5).names == [None]
