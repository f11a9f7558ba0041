"""Stacks of non-tensor values and metadata, against the oracle."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from oracle import oracle, ours

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict import (
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    capture_non_tensor_stack,
    from_consolidated,
    list_to_stack,
    set_capture_non_tensor_stack,
    set_list_to_stack,
)

MASK = torch.tensor([True, False, True])

ENTRIES = {
    "one": lambda p: "x",
    "stack": lambda p: p.NonTensorStack("x", "y", "z"),
    "equal": lambda p: p.NonTensorStack("x", "x", "x"),
    "metadata": lambda p: p.MetaData("x"),
}


def make(package, kind):
    entry = ENTRIES[kind](package)
    return package.TensorDict({"s": entry, "a": torch.arange(3)}, batch_size=[3])


def described(td):
    entry = td.get("s")
    return (tuple(td.batch_size), type(entry).__name__, tuple(entry.batch_size), entry.tolist())


def different(td):
    return td.clone().set("s", "w")


OPERATIONS = {
    "none": lambda td: td[None],
    "int": lambda td: td[0],
    "slice": lambda td: td[1:],
    "mask": lambda td: td[MASK],
    "list": lambda td: td[[0, 2]],
    "unsqueeze": lambda td: td.unsqueeze(0),
    "unsqueeze_last": lambda td: td.unsqueeze(-1),
    "unsqueeze_and_back": lambda td: td.unsqueeze(0).squeeze(0),
    "view": lambda td: td.view(3, 1),
    "reshape": lambda td: td.reshape(1, 3),
    "flatten": lambda td: td.view(3, 1).flatten(),
    "unflatten": lambda td: td.unflatten(0, (1, 3)),
    "expand": lambda td: td.expand(2, 3),
    "expand_row": lambda td: td.expand(2, 3)[0],
    "expand_column": lambda td: td.expand(2, 3)[:, 0],
    "transpose": lambda td: td.unsqueeze(0).transpose(0, 1),
    "permute": lambda td: td.view(3, 1).permute(1, 0),
    "split": lambda td: td.split(2)[0],
    "chunk": lambda td: td.chunk(2)[1],
    "tensor_split": lambda td: td.tensor_split(2)[0],
    "unbind": lambda td: td.unbind(0)[1],
    "narrow": lambda td: td.narrow(0, 1, 1),
    "gather": lambda td: td.gather(0, torch.tensor([2, 2])),
    "repeat": lambda td: td.repeat(2),
    "repeat_interleave": lambda td: td.repeat_interleave(2, dim=0),
    "tile": lambda td: td.tile(2),
    "flip": lambda td: td.flip(0),
    "roll": lambda td: td.roll(1, 0),
    "masked_select": lambda td: td.masked_select(MASK),
    "atleast": lambda td: td.atleast_2d(),
    "stack": lambda td: torch.stack([td, td]),
    "stack_row": lambda td: torch.stack([td, td])[0],
    "stack_column": lambda td: torch.stack([td, td])[:, 1],
    "stack_different": lambda td: torch.stack([td, different(td)], 1),
    "cat": lambda td: torch.cat([td, td]),
    "clone": lambda td: td.clone(),
    "add": lambda td: td + 1,
    "apply": lambda td: td.apply(lambda leaf: leaf + 1),
    "where": lambda td: (
        td.where(MASK, different(td)) if type(td.get("s")).__name__[0] == "N" else td
    ),
    "masked_fill": lambda td: td.masked_fill(MASK, 0),
    "zeros_like": lambda td: torch.zeros_like(td),
    "float": lambda td: td.float(),
    "empty": lambda td: td.empty(recurse=True),
}


@pytest.mark.parametrize("kind", ENTRIES)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_operation_matches_oracle(operation, kind):
    assert described(operation(make(ours, kind))) == described(operation(make(oracle, kind)))


def test_cat_of_different_metadata_is_a_stack():
    # The oracle raises.
    tds = [TensorDict(s=MetaData(text), batch_size=[1]) for text in "xy"]
    assert torch.cat(tds)["s"] == ["x", "y"]


@pytest.mark.parametrize("kind", ["stack", "equal"])
def test_reduction_of_a_stack_raises(kind):
    td = make(ours, kind)
    with pytest.raises(RuntimeError, match="exclude"):
        td.sum(0)
    assert td.exclude("s").sum(0)["a"] == 3


WRITES = """
td[0]["s"] = "v"
td[0].set_("s", "v")
td[0].get("s").update_(p.NonTensorData("v"))
td[0].get("s").data = "v"
td[0].update_({"s": "v"})
td["s"] = "v"
td["s"] = ["v", "w", "u"]
td.set_("s", "v")
td.update_({"s": "v"})
td.update({"s": "v"}, inplace=True)
td.set("s", "v", inplace=True)
td.set_at_("s", "v", 0)
td.update_at_(p.TensorDict({"s": "v"}), 0)
td[0] = p.TensorDict({"s": "v"})
td[0] = p.TensorDict({"s": "x"})
td[:2] = p.TensorDict({"s": "v"}, [2])
td[:2] = p.TensorDict({"s": p.NonTensorStack("v", "w")}, [2])
td[MASK] = p.TensorDict({"s": p.NonTensorStack("v", "w")}, [2])
td[[2, 0]] = p.TensorDict({"s": p.NonTensorStack("v", "w")}, [2])
td[0] = {"s": "v"}
td[:] = p.TensorDict({"s": p.NonTensorStack("u", "v", "w")}, [3])
td[1] = p.TensorDict({"s": "v", "q": 1, "n": "nn"})
td[1:] = p.TensorDict({"s": p.MetaData("v")}, [2])
td[:2] = p.TensorDict({"n": p.NonTensorStack("v", "w")}, [2])
td.lock_()[0] = p.TensorDict({"s": "v"})
td.lock_().update_({"s": "v"})
td.get("s").update_(p.NonTensorData("v"))
""".strip().splitlines()
STACK_WRITES = """
td["s"][0] = "v"
td["s"][:2] = ["v", "w"]
td["s"].append("k")
td.set_("s", ["v", "w", "u"])
td.get("s")[0] = "v"
td.get("s")[1] = p.NonTensorData("v")
td.get("s").update_(p.NonTensorStack("1", "2", "3"))
other = td.unsqueeze(0)[0]; other["s"][1] = "v"
other = td[:2]; other["s"][0] = "v"
other = td.split(2)[0]; other["s"][0] = "v"
other = td.view(3, 1); other["s"][0][0] = "v"
other = td.select("s"); other["s"][0] = "v"
other = td[[0, 1]]; other["s"][0] = "v"
other = td[MASK]; other["s"][0] = "v"
other = td.flip(0); other["s"][0] = "v"
other = td.clone(); other["s"][0] = "v"
other = td.copy(); other["s"][0] = "v"
other = (td + 1); other["s"][0] = "v"
other = td.gather(0, torch.tensor([0, 1])); other["s"][0] = "v"
td[:2][0] = p.TensorDict({"s": "v"})
""".strip().splitlines()


def written(package, kind, code):
    td = make(package, kind)
    exec(code, {"td": td, "p": package, "torch": torch, "MASK": MASK})
    values = {key: value for key, value in td.items() if not isinstance(value, torch.Tensor)}
    return {
        key: (type(value).__name__, tuple(value.batch_size), value.tolist())
        for key, value in values.items()
    }


@pytest.mark.parametrize("kind", ENTRIES)
@pytest.mark.parametrize("code", WRITES)
def test_write_matches_oracle(code, kind):
    assert written(ours, kind, code) == written(oracle, kind, code)


@pytest.mark.parametrize("code", STACK_WRITES)
def test_write_to_a_stack_goes_through_where_the_oracle_does(code):
    assert written(ours, "stack", code) == written(oracle, "stack", code)


def test_nested_list_writes_through():
    td = make(ours, "stack")
    td.unsqueeze(0)["s"][0][1] = "v"
    assert td["s"] == ["x", "v", "z"]


def test_expanded_stack_is_written_without_its_source():
    td = make(ours, "stack")
    wide = td.expand(2, 3)
    wide["s"][0][0] = "v"
    assert (td["s"], wide["s"]) == (["x", "y", "z"], [["v", "y", "z"], ["x", "y", "z"]])


def test_element_of_a_stacked_value_is_written_alone():
    stacked = torch.stack([make(ours, "one")] * 2)
    assert stacked[0]["s"] == "x"
    stacked["s"][0][1] = "v"
    assert stacked["s"] == [["x", "v", "x"], ["x", "x", "x"]]
    stacked.get("s")[1] = "w"
    assert stacked[1]["s"] == ["w", "w", "w"]


@pytest.mark.parametrize("code", ['td.set_("s", ["u", "v", "w"])', 'td.get("s")[0] = "v"'])
def test_write_of_several_values_to_one_raises(code):
    td = make(ours, "one")
    with pytest.raises(ValueError, match=r"use set\(\)|maybe_to_stack"):
        exec(code, {"td": td})
    assert td["s"] == "x"


def test_write_of_a_misfit_changes_nothing():
    td = make(ours, "stack")
    with pytest.raises(TensorDictShapeError, match="broadcast"):
        td.get("s")[:2] = NonTensorStack("1", "2", "3")
    with pytest.raises(TensorDictShapeError):
        td[:2] = TensorDict({"s": NonTensorStack("1", "2", "3")}, [3])
    assert td["s"] == ["x", "y", "z"]


LISTS = [
    ["a", "b", "c"],
    [["a", "b"], ["c", "d"], ["e", "f"]],
    [1, 2, 3],
    ["a", 1, None],
    [{"k": 1}, {"k": 2}, {"k": 3}],
    [["a", [1, 2]], ["b", [2, 3]], ["c", 1]],
    [True, False, True],
    [b"a", b"b", b"c"],
]


@pytest.mark.parametrize("size", [[3], []])
@pytest.mark.parametrize("value", LISTS, ids=str)
def test_stored_list_matches_oracle(value, size):
    def stored(package):
        td = package.TensorDict({}, size)
        td["q"] = value
        entry = td.get("q")
        return type(entry).__name__, tuple(entry.shape), entry.tolist()

    assert stored(ours) == stored(oracle)


def test_stored_list_of_another_length_raises():
    with pytest.raises(TensorDictShapeError, match=r'\["q"\].*\[3\].*\[2\]'):
        TensorDict({"q": ["a", "b"]}, [3])


def test_stored_list_without_switch_is_one_value():
    with set_list_to_stack(False):
        assert list_to_stack() is False
        assert TensorDict({"q": ["a", "b"]}, [3])[0]["q"] == ["a", "b"]
    assert list_to_stack(allow_none=True) is None


def test_capture_of_equal_values_is_switched():
    tds = [TensorDict(s="x"), TensorDict(s="x")]
    assert torch.stack(tds)["s"] == ["x", "x"]

    @set_capture_non_tensor_stack(True)
    def stacked():
        assert capture_non_tensor_stack()
        return torch.stack([*tds, TensorDict(s="x")]), torch.stack([tds[0], TensorDict(s="y")])

    same, other = stacked()
    assert (same["s"], other["s"]) == ("x", ["x", "y"])
    set_capture_non_tensor_stack(True).set()
    try:
        assert capture_non_tensor_stack(allow_none=True) is True
        with set_capture_non_tensor_stack(False):
            assert torch.stack(tds)["s"] == ["x", "x"]
    finally:
        from tdcompile.tensordict import switches

        switches._values.clear()


DIRECT = {
    "from_list": lambda p: p.NonTensorStack.from_list([[True, "b"], ["c", p.NonTensorData("d")]]),
    "stack_dim": lambda p: p.NonTensorStack(
        p.NonTensorData("a", batch_size=[3]), p.NonTensorData("b", batch_size=[3]), stack_dim=1
    ),
    "stack_of_stacks": lambda p: p.NonTensorStack(p.NonTensorStack("2", "3"), stack_dim=1),
    "view": lambda p: p.NonTensorStack(*"abcdef").view(2, 3),
    "index": lambda p: p.NonTensorStack(*"abcdef").view(2, 3)[:, 1:],
    "index_row": lambda p: p.NonTensorStack(*"abcdef").view(2, 3)[1],
    "mask": lambda p: p.NonTensorStack(*"abc")[MASK],
    "mask_scalar": lambda p: p.NonTensorStack("a", "b")[torch.tensor(True)],
    "mask_nothing": lambda p: p.NonTensorStack("a", "b")[torch.zeros(2, dtype=torch.bool)],
    "repeat_interleave": lambda p: p.NonTensorStack("a", "b").repeat_interleave(2, dim=0),
    "torch_stack": lambda p: torch.stack([p.NonTensorData("a"), p.NonTensorData("a")]),
    "torch_stack_stacks": lambda p: torch.stack([p.NonTensorStack("a", "b")] * 2, -1),
    "torch_cat": lambda p: torch.cat([p.NonTensorStack("a", "b"), p.NonTensorStack("c")]),
    "flatten_nothing": lambda p: p.NonTensorData(0).flatten(),
    "expand": lambda p: p.NonTensorData(0, batch_size=(1,)).expand((2, 3)),
    "expand_metadata": lambda p: p.MetaData(0, batch_size=(1,)).expand((2, 3)),
}


@pytest.mark.parametrize("program", DIRECT.values(), ids=DIRECT)
def test_entry_on_its_own_matches_oracle(program):
    def result(package):
        entry = program(package)
        return type(entry).__name__, tuple(entry.batch_size), entry.tolist()

    assert result(ours) == result(oracle)


@pytest.mark.parametrize("kind", ["NonTensorData", "MetaData"])
def test_typed_class_takes_its_type_only(kind):
    for package in (ours, oracle):
        cls = getattr(package, kind) if package is ours or kind == "MetaData" else None
        if cls is None:
            continue
        typed = cls[int]
        assert cls[int] is typed
        assert issubclass(typed, cls)
        assert isinstance(typed(0, batch_size=(3,)), cls)
        with pytest.raises(TypeError, match="Expected data of type int, got str"):
            typed("text")
    assert repr(pickle.loads(pickle.dumps(ours.MetaData[int](3)))).startswith(
        "MetaData[int](data=3"
    )


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))]
)
def test_duplicate_has_values_of_its_own(duplicate):
    td = make(ours, "stack")
    copied = duplicate(td)
    copied["s"][0] = "v"
    assert (td["s"], copied["s"]) == (["x", "y", "z"], ["v", "y", "z"])
    assert duplicate(td["s"]) == ["x", "y", "z"]


def test_comparison_goes_element_by_element():
    left, right = NonTensorStack("a", "b"), NonTensorStack("a", "c")
    assert (left == right).tolist() == [True, False]
    assert (left != right).tolist() == [False, True]
    assert (left == NonTensorData("b", [2])).tolist() == [False, True]
    td = make(ours, "stack")
    assert (td == td.clone()).all()
    assert not (td == different(td)).all()


def test_stack_grows_and_names_its_kind():
    stack = NonTensorStack("a", "c")
    stack.insert(1, NonTensorData("b"))
    stack.append("d")
    stack.extend(["e"])
    assert stack.tolist() == ["a", "b", "c", "d", "e"]
    td = TensorDict(s=NonTensorStack("a", "b"), m=MetaData(3), batch_size=[2])
    assert repr(td) == "TensorDict(batch_size=[2], fields={m: MetaData, s: NonTensorStack})"
    assert str(td["s"]) == "LinkedList(['a', 'b'])"
    assert td.to_dict() == {"s": ["a", "b"], "m": 3}
    with pytest.raises(AttributeError, match="tolist"):
        _ = td.get("s").data


@pytest.mark.parametrize("entry", [MetaData(slice(-1)), NonTensorData("hi")], ids=["meta", "data"])
def test_batch_size_is_read_off_other_entries(entry):
    td = TensorDict(data=torch.zeros(4, 5), meta=entry).auto_batch_size_()
    assert td.batch_size == (4, 5)
    assert TensorDict(s=["a", "b"]).auto_batch_size_().batch_size == (2,)


def test_tree_map_keeps_values_and_refuses_another_batch():
    td = make(ours, "stack")
    tree_map = torch.utils._pytree.tree_map
    assert tree_map(lambda leaf: leaf + 1, td)["s"] == ["x", "y", "z"]
    with pytest.raises(TensorDictShapeError, match="exclude"):
        tree_map(lambda leaf: leaf[:2], td)


SAVED = {
    "memmap": lambda td, path: [td.memmap(path), TensorDict.load_memmap(path)][1],
    "consolidated": lambda td, path: td.consolidate(),
    "file": lambda td, path: [td.consolidate(path / "f"), from_consolidated(path / "f")][1],
}


@pytest.mark.parametrize("save", SAVED.values(), ids=SAVED)
def test_saved_values_come_back(save, tmp_path):
    stack = NonTensorStack.from_list([["a", "b"], ["c", 1]])
    td = TensorDict(s=stack, m=MetaData({"k": 1}), x="t", a=torch.ones(2, 2), batch_size=[2, 2])
    found = save(td, tmp_path)
    assert found["s"] == [["a", "b"], ["c", 1]]
    kinds = [type(found.get(key)).__name__ for key in ("s", "m", "x")]
    # A consolidated file, whose format is the reference's, does not say that it was metadata.
    is_file = save is SAVED["file"]
    assert kinds == ["NonTensorStack", "NonTensorData" if is_file else "MetaData", "NonTensorData"]
    assert (found["m"], found["x"]) == ({"k": 1}, "t")


def test_saved_objects_need_pickle(tmp_path):
    td = TensorDict(s=NonTensorStack(1j, 2j), batch_size=[2])
    td.memmap(tmp_path, allow_pickle=True)
    assert TensorDict.load_memmap(tmp_path, allow_pickle=True)["s"] == [1j, 2j]
    with pytest.raises(RuntimeError, match="allow_pickle"):
        TensorDict.load_memmap(tmp_path, allow_pickle=False)
