"""Entries without batch dimensions, against the oracle."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import warnings

import pytest
import tensordict as oracle
import torch

import tdcompile.tensordict as ours
from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict import TensorDict, UnbatchedTensor

MASK = torch.tensor([True, False, True])


def make(package, **entries):
    table = package.UnbatchedTensor(torch.arange(4.0))
    return package.TensorDict({"u": table, "a": torch.arange(3), **entries}, [3])


SHAPES = {
    "unsqueeze": lambda td: td.unsqueeze(0),
    "none": lambda td: td[None],
    "int": lambda td: td[0],
    "slice": lambda td: td[:2],
    "mask": lambda td: td[MASK],
    "list": lambda td: td[[0, 1]],
    "view": lambda td: td.view(3, 1),
    "reshape": lambda td: td.reshape(1, 3),
    "flatten": lambda td: td.view(3, 1).flatten(),
    "unflatten": lambda td: td.unflatten(0, (1, 3)),
    "expand": lambda td: td.expand(2, 3),
    "transpose": lambda td: td.view(3, 1).transpose(0, 1),
    "permute": lambda td: td.view(3, 1).permute(1, 0),
    "squeeze": lambda td: td.view(3, 1).squeeze(),
    "split": lambda td: td.split(2)[0],
    "chunk": lambda td: td.chunk(2)[0],
    "unbind": lambda td: td.unbind(0)[0],
    "gather": lambda td: td.gather(0, torch.tensor([0, 0])),
    "repeat": lambda td: td.repeat(2),
    "repeat_interleave": lambda td: td.repeat_interleave(2, dim=0),
    "flip": lambda td: td.flip(0),
    "masked_select": lambda td: td.masked_select(MASK),
    "stack": lambda td: torch.stack([td, td], -1),
    "cat": lambda td: torch.cat([td, td]),
    "sum": lambda td: td.sum(0),
    "sum_all": lambda td: td.sum(),
    "new_zeros": lambda td: td.new_zeros(2),
    "nested": lambda td: td.apply(lambda leaf: leaf, batch_size=[]),
    "select": lambda td: td.select("u"),
}
LEAFWISE = {
    "add": lambda td: td + 1,
    "radd": lambda td: 1 + td,
    "pair": lambda td: td + td,
    "exp": lambda td: td.float().exp(),
    "clone": lambda td: td.clone(),
    "int": lambda td: td.int(),
    "eq": lambda td: td == td,
    "apply": lambda td: td.apply(lambda leaf: leaf * 2),
    "zeros_like": lambda td: torch.zeros_like(td),
    "zero": lambda td: td.zero_(),
    "set_same_shape": lambda td: td.set("u", torch.zeros(3)),
    "update_at": lambda td: td.update_at_(make_like(td), 0),
    "write_row": lambda td: [td.__setitem__(0, td[1] * 0), td][1],
    "data": lambda td: td.data,
    "batch_size_longer": lambda td: td.auto_batch_size_(),
}


def make_like(td):
    return type(td)({"u": type(td.get("u"))(torch.zeros(4))}, [])


def described(td):
    entry = td.get("u")
    size = tuple(getattr(entry, "batch_size", ())) if hasattr(entry, "batch_size") else None
    return tuple(td.batch_size), type(entry).__name__, size, entry.dtype, entry.tolist()


@pytest.mark.parametrize(
    "program", [*SHAPES.values(), *LEAFWISE.values()], ids=[*SHAPES, *LEAFWISE]
)
def test_unbatched_entry_matches_oracle(program):
    assert described(program(make(ours))) == described(program(make(oracle)))


@pytest.mark.parametrize("program", SHAPES.values(), ids=SHAPES)
def test_unbatched_entry_keeps_its_storage(program):
    td = make(ours)
    if program is not SHAPES["nested"]:
        assert program(td)["u"].data_ptr() == td["u"].data_ptr()


def test_unbatched_tensor_is_a_tensor_with_its_own_shape():
    entry = make(ours)["u"]
    assert isinstance(entry, torch.Tensor)
    assert entry.shape == (4,)
    assert (entry + torch.ones(4)).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_unbatched_entry_in_two_tensordicts_has_both_batch_sizes():
    table = UnbatchedTensor(torch.ones(2))
    first, second = TensorDict(u=table, batch_size=[3]), TensorDict(u=table, batch_size=[4, 5])
    assert (first["u"].batch_size, second["u"].batch_size) == ((3,), (4, 5))
    assert table.batch_size == ()


def test_stack_of_other_unbatched_data_warns():
    tds = [TensorDict(u=UnbatchedTensor(torch.full((2,), float(i)))) for i in range(2)]
    with pytest.warns(UserWarning, match="different data storage"):
        assert torch.stack(tds)["u"].tolist() == [0.0, 0.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.stack([tds[0], tds[0]])


@pytest.mark.parametrize(
    "program",
    [
        lambda td: td + torch.arange(3),
        lambda td: td + TensorDict(u=torch.ones(3, 4), a=torch.ones(3), batch_size=[3]),
        lambda td: td.__setitem__(0, TensorDict(u=torch.ones(4), a=torch.ones(()))),
        lambda td: td.__setitem__(0, TensorDict(u=UnbatchedTensor(torch.ones(5)))),
        lambda td: td.masked_fill(MASK, 0),
    ],
    ids=["tensor", "batched", "write_batched", "write_other_shape", "masked_fill"],
)
def test_unbatched_entry_meets_batched_operand_raises(program):
    with pytest.raises((TensorDictShapeError, RuntimeError), match=r"UnbatchedTensor|u"):
        program(make(ours))


def test_reduction_over_all_leaves_with_unbatched_raises():
    with pytest.raises(ValueError, match="UnbatchedTensor"):
        make(ours).sum(dim=0, reduce=True)


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v)), torch.clone],
    ids=["copy", "deepcopy", "pickle", "clone"],
)
def test_unbatched_tensor_duplicate_keeps_batch_size(duplicate):
    table = duplicate(UnbatchedTensor(torch.arange(3), batch_size=[2]))
    assert type(table) is UnbatchedTensor
    assert (table.tolist(), table.batch_size) == ([0, 1, 2], (2,))
    td = duplicate(make(ours))
    assert td["u"].batch_size == (3,)


CONVERSIONS = (
    str,
    format,
    bool,
    int,
    float,
    complex,
    operator.index,
    round,
    math.trunc,
    math.floor,
)


@pytest.mark.parametrize(
    "data", [torch.tensor(3), torch.tensor(1.25), torch.tensor([1, 2])], ids=str
)
@pytest.mark.parametrize("convert", CONVERSIONS, ids=lambda f: f.__name__)
def test_unbatched_tensor_converts_like_its_data(convert, data):
    def result(value):
        try:
            return convert(value)
        except Exception as error:
            return type(error), str(error)

    found = result(UnbatchedTensor(data))
    assert found == result(data)
    assert not isinstance(found, UnbatchedTensor)


def test_unbatched_entry_prints_and_counts():
    td = make(ours)
    assert repr(td) == "TensorDict(batch_size=[3], fields={a: i64[], u: f32[4]})"
    assert td.param_count() == 7
    assert list(td.keys(True, True)) == ["u", "a"]


def test_unbatched_entry_gradient_flows():
    weight = torch.ones(2, requires_grad=True)
    td = TensorDict(u=UnbatchedTensor(weight), x=torch.ones(3), batch_size=[3])
    (td[0].reshape(1)["u"] * 3).sum().backward()
    assert weight.grad.tolist() == [3.0, 3.0]


def test_tree_map_keeps_unbatched_entry():
    td = make(ours)
    result = torch.utils._pytree.tree_map(lambda leaf: leaf + 1, td)
    assert type(result["u"]) is UnbatchedTensor
    assert result["u"].batch_size == result.batch_size == (3,)


def test_exported_context_remembers_unbatched_entries():
    td = make(ours)
    leaves, spec = torch.utils._pytree.tree_flatten(td)
    loaded = torch.utils._pytree.treespec_loads(torch.utils._pytree.treespec_dumps(spec))
    found = torch.utils._pytree.tree_unflatten(leaves, loaded)
    assert (found.batch_size, found["u"].batch_size, found["u"].shape) == ((3,), (3,), (4,))


def test_vmap_over_rows_of_an_unbatched_tensor_raises():
    td = TensorDict(u=UnbatchedTensor(torch.ones(3, 2)), a=torch.ones(3), batch_size=[3])
    with pytest.raises(TensorDictShapeError, match="vmap"):
        torch.vmap(lambda row: row + 1)(td)
    found = torch.vmap(lambda row: row.set("b", row["a"] + td["u"].sum()))(td.exclude("u"))
    assert found["b"].tolist() == [7.0, 7.0, 7.0]
