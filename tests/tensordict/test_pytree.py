"""Pytrees: leaves, paths, and the batch size after other shapes come back."""

from __future__ import annotations

import pytest
import torch
from oracle import example, ours, run_both
from torch.utils import _pytree as pytree

Z = torch.zeros


def _td(p, **kwargs):
    return p.TensorDict({"a": Z(3, 2), "n": {"x": Z(3, 2)}}, [3], **kwargs)


def _td_with_more(p):
    return p.TensorDict({"a": Z(3, 2), "n": p.TensorDict({"x": Z(3, 2)}, [3, 2])}, [3])


MAPS = {
    "identity": lambda x: x,
    "slice": lambda x: x[:2],
    "expand": lambda x: x.expand(7, *x.shape),
    "sum": lambda x: x.sum(),
    "sum_last": lambda x: x.sum(-1),
    "unsqueeze_last": lambda x: x.unsqueeze(-1),
    "meta": lambda x: x.to("meta"),
}


@pytest.mark.parametrize("make", [_td, _td_with_more], ids=["same", "nested_with_more"])
@pytest.mark.parametrize("fn", MAPS.values(), ids=MAPS)
def test_tree_map_matches_oracle(fn, make):
    run_both(lambda p: pytree.tree_map(fn, make(p)))


def test_index_takes_a_batch_dimension_off():
    td = pytree.tree_map(lambda x: x[0], _td_with_more(ours))
    assert td.batch_size == torch.Size([])
    assert td["n"].batch_size == torch.Size([2])


def test_leaves_that_disagree_share_what_they_can():
    td = pytree.tree_unflatten([Z(4, 5), Z(6, 7)], pytree.tree_flatten(_td(ours))[1])
    assert td.batch_size == torch.Size([])
    assert td["n"].batch_size == torch.Size([6])


def test_names_device_and_non_tensor_come_back():
    run_both(lambda p: pytree.tree_map(lambda x: x, _td(p, names=["t"], device="cpu")))
    run_both(lambda p: pytree.tree_map(lambda x: x, example(p)))
    run_both(lambda p: pytree.tree_map(lambda x: x, example(p).lock_()))
    run_both(lambda p: pytree.tree_map(lambda x: x, p.TensorDict({"s": "x"}, [3])))


def test_device_goes_where_leaves_left_it():
    moved = pytree.tree_map(lambda x: x.to("meta"), _td(ours, device="cpu"))
    assert moved.device is None


def test_non_tensor_gets_the_new_batch_size():
    td = pytree.tree_map(lambda x: x[:2], ours.TensorDict({"s": "x", "a": Z(3)}, [3]))
    assert td.get("s").batch_size == td.batch_size == torch.Size([2])


def test_paths_match_oracle():
    run_both(
        lambda p: [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(example(p))[0]]
    )


def test_specs_compare_without_sizes():
    def spec(td):
        return pytree.tree_flatten(td)[1]

    assert spec(ours.TensorDict({"a": Z(3)}, [3])) == spec(ours.TensorDict({"a": Z(4, 2)}, [4]))
    assert spec(ours.TensorDict({"a": Z(3)}, [3])) != spec(ours.TensorDict({"a": Z(3)}, []))
    assert spec(ours.TensorDict({"a": Z(3)}, [3])) != spec(ours.TensorDict({"b": Z(3)}, [3]))
    assert spec(ours.TensorDict({"s": "x"})) != spec(ours.TensorDict({"s": "y"}))


def test_tree_map_over_two_tensordicts():
    td = pytree.tree_map(torch.add, _td(ours), pytree.tree_map(lambda x: x + 1, _td(ours)))
    assert td["n", "x"].tolist() == torch.ones(3, 2).tolist()


VMAPS = {
    "identity": lambda p: torch.vmap(lambda td: td)(_td(p)),
    "identity_names": lambda p: torch.vmap(lambda td: td)(_td(p)).names,
    "inner_batch_sizes": lambda p: torch.vmap(lambda td: td.set("b", td["a"].sum(-1)))(_td(p))["b"],
    "nested_with_more": lambda p: torch.vmap(lambda td: td)(_td_with_more(p)),
    "non_tensor": lambda p: torch.vmap(lambda td: td)(example(p)),
    "two_dimensions": lambda p: torch.vmap(torch.vmap(lambda td: td))(
        p.TensorDict({"a": Z(3, 2, 1)}, [3, 2])
    ),
    "square": lambda p: torch.vmap(lambda td: td)(p.TensorDict({"a": Z(3, 3)}, [3])),
}


@pytest.mark.parametrize("program", VMAPS.values(), ids=VMAPS)
def test_vmap_matches_oracle(program):
    run_both(program)


def test_vmap_inside_has_a_batch_dimension_less():
    seen = []

    def program(td):
        seen.append((td.batch_size, td["n"].batch_size))
        return td

    torch.vmap(program)(_td_with_more(ours))
    assert seen == [(torch.Size([]), torch.Size([2]))]


def test_spec_round_trips_through_json():
    td = example(ours, names=["t"], device="cpu")
    leaves, spec = pytree.tree_flatten(td)
    loaded = pytree.treespec_loads(pytree.treespec_dumps(spec))
    result = pytree.tree_unflatten(leaves, loaded)
    assert loaded == spec
    assert result.batch_size == td.batch_size
    assert result.names == ["t"]
    assert result["s"] == "hello"


def test_placeholders_unflatten_and_print():
    td = pytree.tree_map(lambda x: 0, _td(ours))
    assert repr(td) == "TensorDict(batch_size=[3], fields={a: 0, n: {x: 0}})"


class _Doubled(torch.nn.Module):
    def forward(self, td):
        entries = {"y": td["a"] * 2, "n": td["n"], "s": td.get("s")}
        return type(td)(entries, td.batch_size)


def test_export_runs_again_at_another_batch_size():
    def td(size):
        entries = {"a": torch.ones(size, 2), "n": {"x": torch.ones(size)}, "s": "text"}
        return ours.TensorDict(entries, [size], names=["t"])

    dynamic = {0: torch.export.Dim.DYNAMIC}
    program = torch.export.export(
        _Doubled(), (td(3),), strict=False, dynamic_shapes=([dynamic, [dynamic]],)
    )
    result = program.module()(td(5))
    assert result.batch_size == result["n"].batch_size == torch.Size([5])
    assert result["y"].tolist() == [[2.0, 2.0]] * 5
    assert result["s"] == "text"
