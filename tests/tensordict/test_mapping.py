"""Entries: read, written, merged, moved and removed as the oracle does, all or nothing."""

from __future__ import annotations

import pytest
import torch
from oracle import example, ours, run_both

from tdcompile.errors import (
    InvalidKeyError,
    KeyPathError,
    KeyThroughLeafError,
    LockedError,
    TensorDictShapeError,
)

Z = torch.zeros
ONES = torch.ones

# Programs whose result is compared; each gets the package and a tensordict of it.
READS = {
    "get": lambda p, td: td.get("a"),
    "get_absent": lambda p, td: td.get("zz"),
    "get_default": lambda p, td: td.get("zz", 5),
    "get_nested": lambda p, td: td.get(("n", ("d", "z"))),
    "get_nested_absent": lambda p, td: td.get(("n", "zz")),
    "get_through_tensor": lambda p, td: td.get(("a", "zz")),
    "get_through_tensor_default": lambda p, td: td.get(("a", "zz"), 3),
    "get_through_non_tensor_default": lambda p, td: td.get(("s", "zz"), 3),
    "get_int": lambda p, td: td.get(3),
    "get_empty_tuple": lambda p, td: td.get(()),
    "get_non_tensor_entry": lambda p, td: td.get("s"),
    "item": lambda p, td: td["a"],
    "item_nested": lambda p, td: td["n", "d", "z"],
    "item_one_tuple": lambda p, td: td[("a",)],
    "item_non_tensor": lambda p, td: td["s"],
    "item_absent": lambda p, td: td["zz"],
    "item_nested_absent": lambda p, td: td["n", "zz"],
    "item_through_tensor": lambda p, td: td["a", "zz"],
    "item_mixed": lambda p, td: td["a", 0],
    "get_non_tensor": lambda p, td: td.get_non_tensor("s"),
    "get_non_tensor_of_tensor": lambda p, td: td.get_non_tensor("a"),
    "get_non_tensor_absent": lambda p, td: td.get_non_tensor("zz"),
    "contains": lambda p, td: ["a" in td, "zz" in td, ("n", "x") in td, ("a", "x") in td],
    "contains_int": lambda p, td: 3 in td,
    "len": lambda p, td: [len(td), len(p.TensorDict(a=Z(3))), len(p.TensorDict({}, [0, 2]))],
    "iter": lambda p, td: list(td),
    "iter_without_batch": lambda p, td: list(p.TensorDict(a=Z(3))),
    "bool": lambda p, td: bool(td),
    "to_dict": lambda p, td: td.to_dict(),
    "to_dict_lists": lambda p, td: td.to_dict(convert_tensors=True),
    "to_dict_without_none": lambda p, td: td.set("x", None).to_dict(retain_none=False),
}


@pytest.mark.parametrize("program", READS.values(), ids=READS)
def test_read_matches_oracle(program):
    run_both(lambda p: program(p, example(p)))


# Programs that change the tensordict, which is compared afterwards (also when they raise).
WRITES = {
    "set": lambda p, td: td.set("b", Z(3)),
    "set_existing_keeps_place": lambda p, td: td.set("a", ONES(3)),
    "set_int_key": lambda p, td: td.set(3, Z(3)),
    "set_empty_key": lambda p, td: td.set((), Z(3)),
    "set_mixed_key": lambda p, td: td.set(("a", 3), Z(3)),
    "set_misfit": lambda p, td: td.set("b", Z(4)),
    "set_nested": lambda p, td: td.set(("n", "b"), Z(3)),
    "set_nested_new": lambda p, td: td.set(("q", "r", "b"), Z(3)),
    "set_nested_new_misfit": lambda p, td: td.set(("q", "r", "b"), Z(4)),
    "set_through_tensor": lambda p, td: td.set(("a", "b"), Z(3)),
    "set_dict": lambda p, td: td.set("q", {"a": Z(3, 4)}),
    "set_dict_misfit": lambda p, td: td.set("q", {"b": Z(3), "a": Z(2, 4)}),
    "set_tensordict_less": lambda p, td: td.set("q", p.TensorDict({"a": Z(3, 4)})),
    "set_tensordict_more": lambda p, td: td.set("q", p.TensorDict({"a": Z(3, 4)}, [3, 4])),
    "set_tensordict_misfit": lambda p, td: td.set("q", p.TensorDict({"a": Z(4)}, [4])),
    "set_number_misfit": lambda p, td: td.set("q", 1.0),
    "set_string": lambda p, td: td.set("q", "text"),
    "set_non_tensor_less": lambda p, td: td.set("q", p.NonTensorData("z")),
    "set_non_tensor_more": lambda p, td: td.set("q", p.NonTensorData("z", batch_size=[3, 4])),
    "set_inplace": lambda p, td: td.set("a", ONES(3, 2), inplace=True),
    "set_inplace_absent": lambda p, td: td.set("zz", ONES(3), inplace=True),
    "set_inplace_broadcasts": lambda p, td: td.set("a", ONES(3, 1), inplace=True),
    "set_inplace_misfit": lambda p, td: td.set("a", ONES(3, 3), inplace=True),
    "set_inplace_tensor_over_tensordict": lambda p, td: td.set("n", ONES(3), inplace=True),
    "setitem": lambda p, td: td.__setitem__("b", Z(3)),
    "setitem_nested": lambda p, td: td.__setitem__(("n", "d", "q"), Z(3)),
    "set_": lambda p, td: td.set_("a", ONES(3, 2)),
    "set__nested": lambda p, td: td.set_(("n", "x"), ONES(3)),
    "set__casts": lambda p, td: td.set_("a", ONES(3, 2, dtype=torch.float64)),
    "set__absent": lambda p, td: td.set_("zz", ONES(3)),
    "set__nested_absent": lambda p, td: td.set_(("n", "zz"), ONES(3)),
    "set__misfit": lambda p, td: td.set_("a", ONES(4, 2)),
    "set__number_misfit": lambda p, td: td.set_("a", 3),
    "set__non_tensor": lambda p, td: td.set_("s", "bye"),
    "set__tensor_over_non_tensor": lambda p, td: td.set_("s", Z(3)),
    "set__string_over_tensor": lambda p, td: td.set_("a", "text"),
    "set__tensordict_part": lambda p, td: td.set_("n", p.TensorDict({"x": ONES(3)}, [3])),
    "set__tensordict_over_tensor": lambda p, td: td.set_("a", p.TensorDict({"x": Z(3)}, [3])),
    "set_non_tensor": lambda p, td: td.set_non_tensor(("n", "q"), 1),
    "setdefault": lambda p, td: td.setdefault("b", Z(3)),
    "setdefault_present": lambda p, td: td.setdefault("a", Z(5)),
    "setdefault_nested": lambda p, td: td.setdefault(("q", "b"), Z(3)),
    "update": lambda p, td: td.update({"b": Z(3), "n": {"y": Z(3)}}),
    "update_tensordict": lambda p, td: td.update(p.TensorDict({"n": {"y": Z(3)}}, [3])),
    "update_without_batch": lambda p, td: td.update(p.TensorDict({"q": {"y": Z(3)}})),
    "update_keywords": lambda p, td: td.update({"b": Z(3)}, b=ONES(3)),
    "update_nested_keys": lambda p, td: td.update({("n", "y"): Z(3), "b": Z(3), ("m", "y"): Z(3)}),
    "update_itself": lambda p, td: td.update(td),
    "update_some_keys": lambda p, td: td.update(
        {"b": Z(3), "c": Z(3), "n": {"y": Z(3), "w": Z(3)}}, keys_to_update=["b", ("n", "y"), "zz"]
    ),
    "update_tensor_over_tensordict": lambda p, td: td.update({"n": Z(3)}),
    "update_tensordict_over_tensor": lambda p, td: td.update({"a": {"y": Z(3)}}),
    "update_through_tensor": lambda p, td: td.update({("a", "y"): Z(3)}),
    "update_no_mapping": lambda p, td: td.update(3),
    "update_inplace": lambda p, td: td.update({"a": ONES(3, 2), "b": Z(3)}, inplace=True),
    "update_inplace_misfit": lambda p, td: td.update({"a": ONES(3, 5)}, inplace=True),
    "update_batch_size": lambda p, td: td.exclude("n").update(
        p.TensorDict({"a": Z(4), "s": "t", "q": Z(4)}, [4]), update_batch_size=True
    ),
    "update_": lambda p, td: td.update_({"a": ONES(3, 2), "n": {"x": ONES(3)}, "s": "new"}),
    "update__absent": lambda p, td: td.update_({"zz": ONES(3, 2)}),
    "update__some_keys": lambda p, td: td.update_({"a": ONES(3, 2), "zz": 1}, keys_to_update=["a"]),
    "pop": lambda p, td: td.pop("a"),
    "pop_nested": lambda p, td: td.pop(("n", "x")),
    "pop_non_tensor": lambda p, td: td.pop("s"),
    "pop_absent": lambda p, td: td.pop("zz"),
    "pop_default": lambda p, td: [td.pop("zz", None), td.pop(("q", "q"), 3)],
    "popitem": lambda p, td: td.popitem(),
    "popitem_empty": lambda p, td: p.TensorDict().popitem(),
    "del_": lambda p, td: td.del_("a"),
    "del__nested": lambda p, td: td.del_(("n", "x")),
    "del__absent": lambda p, td: td.del_(("n", "zz")),
    "delitem_int": lambda p, td: td.__delitem__(0),
    "del_and_set_moves_to_the_end": lambda p, td: td.del_("a").set("a", Z(3)),
    "rename_key_": lambda p, td: td.rename_key_("a", "b"),
    "rename_key__taken": lambda p, td: td.rename_key_("a", "n"),
    "rename_key__taken_safe": lambda p, td: td.rename_key_("a", "n", safe=True),
    "rename_key__same": lambda p, td: td.rename_key_("a", "a", safe=True),
    "rename_key__nested": lambda p, td: td.rename_key_(("n", "x"), ("q", "y")),
    "rename_key__below_itself": lambda p, td: td.rename_key_("n", ("n", "q")),
    "rename_key__absent": lambda p, td: td.rename_key_("zz", "y"),
    "rename_key__int": lambda p, td: td.rename_key_("a", 3),
    "clear": lambda p, td: td.clear(),
    "create_nested": lambda p, td: td.create_nested(("e", "f")),
    "create_nested_taken": lambda p, td: td.create_nested("n"),
    "filter_empty_": lambda p, td: td.update({"e": {"f": {}}}).filter_empty_(),
}


@pytest.mark.parametrize("program", WRITES.values(), ids=WRITES)
def test_write_matches_oracle(program):
    def whole(p):
        td = example(p)
        return [program(p, td), td]

    run_both(whole)


def test_update_of_some_keys_of_a_new_nested_takes_those_only():
    # The oracle takes all of a nested tensordict that is not there yet; its select() does not.
    td = example(ours).update({"m": {"y": Z(3), "w": Z(3)}}, keys_to_update=[("m", "y")])
    assert list(td["m"].keys()) == ["y"]


NEW = {
    "select": lambda p, td: td.select("s", "a"),
    "select_nested": lambda p, td: td.select(("n", "d", "z"), "a", ("n", "x")),
    "select_whole_and_part": lambda p, td: td.select("n", ("n", "x")),
    "select_nothing": lambda p, td: td.select(),
    "select_absent": lambda p, td: td.select("zz"),
    "select_not_strict": lambda p, td: td.select("zz", ("n", "zz"), ("a", "q"), strict=False),
    "select_through_tensor": lambda p, td: td.select(("a", "b")),
    "select_list": lambda p, td: td.select(["a"]),
    "select_inplace": lambda p, td: td.select("a", ("n", "x"), inplace=True),
    "exclude": lambda p, td: td.exclude("a", ("n", "d")),
    "exclude_absent": lambda p, td: td.exclude("zz", ("n", "zz"), ("zz", "q"), ("a", "q")),
    "exclude_inplace": lambda p, td: td.exclude("a", ("n", "x"), inplace=True),
    "replace": lambda p, td: td.replace({"b": Z(3), "n": {"y": Z(3)}}, c=Z(3)),
    "replace_number": lambda p, td: td.replace(3),
    "replace_two": lambda p, td: td.replace({}, {}),
    "rename_keys_swap": lambda p, td: td.rename_keys({"a": "n", "n": "a"}),
    "rename_keys_prunes": lambda p, td: td.rename_keys({("n", "x"): "x", ("n", "d"): "d"}),
    "rename_keys_taken": lambda p, td: td.rename_keys({"a": "s"}),
    "rename_keys_through_leaf": lambda p, td: td.rename_keys({"s": ("a", "q")}),
    "rename_keys_twice": lambda p, td: td.rename_keys({"a": "q", "s": "q"}),
    "rename_keys_inside": lambda p, td: td.rename_keys({"n": "q", ("n", "x"): "w"}),
    "rename_keys_absent": lambda p, td: td.rename_keys({"zz": "q"}),
    "rename_keys_not_strict": lambda p, td: td.rename_keys({"zz": "q"}, strict=False),
    "split_keys": lambda p, td: td.split_keys(["a"], ["s", ("n", "x")]),
    "split_keys_renames": lambda p, td: td.split_keys({"a": "A", ("n", "x"): ("m", "y")}),
    "split_keys_function": lambda p, td: td.split_keys(lambda k, v: v.ndim == 1),
    "split_keys_absent": lambda p, td: td.split_keys(["zz"]),
    "split_keys_default": lambda p, td: td.split_keys(["zz"], strict=False, default=Z(3)),
    "split_keys_structure": lambda p, td: td.split_keys(["a"], reproduce_struct=True),
    "split_keys_inplace": lambda p, td: td.split_keys(["a", ("n", "x")], inplace=True),
    "flatten_keys": lambda p, td: td.flatten_keys(),
    "flatten_keys_separator": lambda p, td: td.flatten_keys("-"),
    "flatten_keys_inplace": lambda p, td: td.flatten_keys(inplace=True),
    "flatten_keys_collision": lambda p, td: td.set("n.x", Z(3)).flatten_keys(),
    "flatten_keys_empty": lambda p, td: td.set("e", {}).flatten_keys(),
    "unflatten_keys": lambda p, td: td.flatten_keys().unflatten_keys(),
    "unflatten_keys_inplace": lambda p, td: td.flatten_keys().unflatten_keys(inplace=True),
    "unflatten_keys_collision": lambda p, td: td.set("a.b", Z(3)).unflatten_keys(),
    "unflatten_keys_merges": lambda p, td: td.set("n.q", Z(3)).unflatten_keys(),
    "unflatten_keys_dots": lambda p, td: p.TensorDict({"a..b": Z(3), ".c": Z(3)}).unflatten_keys(),
    "clone": lambda p, td: td.clone(),
    "copy": lambda p, td: td.copy(),
    "copy_of_locked": lambda p, td: td.lock_().copy(),
    "empty": lambda p, td: p.TensorDict({"a": Z(3)}, [3], names=["x"], device="cpu").empty(),
    "empty_recurse": lambda p, td: td.empty(recurse=True),
    "empty_other": lambda p, td: td.empty(batch_size=[4], device="cpu", names=["q"]),
    "filter_non_tensor_data": lambda p, td: td.filter_non_tensor_data(),
}


@pytest.mark.parametrize("program", NEW.values(), ids=NEW)
def test_rearrangement_matches_oracle(program):
    def whole(p):
        td = example(p)
        return [program(p, td), td]

    run_both(whole)


ALIASING = {
    "select_whole": lambda p, td: td.select("n")["n"] is td["n"],
    "select_part": lambda p, td: td.select(("n", "x"))["n"] is td["n"],
    "exclude_other": lambda p, td: td.exclude("a")["n"] is td["n"],
    "exclude_part": lambda p, td: td.exclude(("n", "x"))["n"] is td["n"],
    "copy_nested": lambda p, td: td.copy()["n"] is td["n"],
    "copy_leaf": lambda p, td: td.copy()["a"] is td["a"],
    "clone_leaf": lambda p, td: td.clone()["a"] is td["a"],
    "replace_nothing": lambda p, td: td.replace({}) is td,
    "update_returns_itself": lambda p, td: td.update({}) is td,
    "nested_merged_in_place": lambda p, td: (lambda n: td.update({"n": {"y": Z(3)}})["n"] is n)(
        td["n"]
    ),
    "set_inplace_keeps_leaf": lambda p, td: (
        lambda a: td.set("a", ONES(3, 2), inplace=True)["a"] is a
    )(td["a"]),
    "select_inplace_keeps_nested": lambda p, td: (
        lambda n: td.select(("n", "x"), inplace=True)["n"] is n
    )(td["n"]),
    "flatten_keys_leaf": lambda p, td: td.flatten_keys()["n.x"] is td["n", "x"],
}


@pytest.mark.parametrize("program", ALIASING.values(), ids=ALIASING)
def test_aliasing_matches_oracle(program):
    run_both(lambda p: program(p, example(p)))


def _with_device(p):
    td = p.TensorDict({}, [3], device="meta")
    td["a"] = Z(3)
    td["q"] = p.TensorDict({"x": Z(3)}, [3])
    td["r", "x"] = Z(3)
    return td


def _with_names(p):
    td = p.TensorDict({"n": {"x": Z(3)}}, [3], names=["t"])
    td["m", "y"] = Z(3)
    td["q"] = p.TensorDict({"x": Z(3)}, [3])
    td["l"] = p.TensorDict({"x": Z(3)})
    return td


def _takes_names(p):
    td = p.TensorDict({"n": {"x": Z(3)}}, [3])
    td["w"] = p.TensorDict({"x": Z(3)}, [3], names=["w"])
    return td


def _other_names(p):
    td = p.TensorDict({}, [3], names=["t"])
    td["w"] = p.TensorDict({"x": Z(3)}, [3], names=["w"])
    return td


@pytest.mark.parametrize("program", [_with_device, _with_names, _takes_names, _other_names])
def test_written_tensordict_gets_device_and_names_as_the_oracle(program):
    run_both(program)


FAILING = {
    "second_of_update": (TensorDictShapeError, lambda td: td.update({"a": Z(3), "b": Z(4)})),
    "nested_of_update": (TensorDictShapeError, lambda td: td.update({"a": Z(3), "n": {"b": Z(4)}})),
    "last_of_update_": (KeyPathError, lambda td: td.update_({"a": ONES(3, 2), "zz": Z(3)})),
    "inplace_update": (
        TensorDictShapeError,
        lambda td: td.update({"a": ONES(3, 2), "n": {"x": Z(3, 9)}}, inplace=True),
    ),
    "bad_key_in_update": (InvalidKeyError, lambda td: td.update({"b": Z(3), 3: Z(3)})),
    "through_leaf": (KeyThroughLeafError, lambda td: td.update({"b": Z(3), ("s", "q"): Z(3)})),
    "locked_child": (
        LockedError,
        lambda td: (td["n"].lock_(), td.update({"b": Z(3), "n": {"q": Z(3)}})),
    ),
    "extra_key_of_set_": (KeyPathError, lambda td: td.set_("n", {"x": ONES(3), "q": Z(3)})),
    "rename_taken": (KeyPathError, lambda td: td.rename_key_("a", "s", safe=True)),
    "unflatten_inplace": (
        KeyPathError,
        lambda td: td.update({"n.q": Z(3), "a.b": Z(3)}).unflatten_keys(inplace=True),
    ),
}


@pytest.mark.parametrize(("error", "program"), FAILING.values(), ids=FAILING)
def test_failed_write_changes_nothing(error, program):
    td = example(ours)
    if program is FAILING["unflatten_inplace"][1]:
        td.update({"n.q": Z(3), "a.b": Z(3)})
    before = td.clone().to_dict()
    keys = list(td.keys(include_nested=True))
    with pytest.raises(error):
        program(td)
    assert list(td.keys(include_nested=True)) == keys
    for key, value in ours.TensorDict(before, [3]).items(include_nested=True, leaves_only=True):
        assert torch.equal(td[key], value)


def test_misfit_message_names_key_shape_and_dimension():
    with pytest.raises(TensorDictShapeError) as info:
        ours.TensorDict({"n": {"obs": Z(3, 8)}}, [4])
    text = str(info.value)
    assert 'expected td["n", "obs"] to start with the batch size [4]' in text
    assert "found shape [3, 8]: dimension 0 must be 4, got 3" in text
    assert "change td.batch_size first" in text


def test_absent_key_message_lists_the_keys_there():
    with pytest.raises(KeyPathError) as info:
        example(ours)["n", "zz"]
    assert "key ('n', 'zz') was not found" in str(info.value)
    assert """keys ['x', 'd'] at td["n"]""" in str(info.value)
