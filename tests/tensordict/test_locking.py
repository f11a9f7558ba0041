"""Locks: what they refuse, how far they reach and when they go, as the oracle's."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from oracle import example, ours, run_both

from tdcompile.errors import LockedError

Z = torch.zeros

PROGRAMS = {
    "set_new": lambda td: td.set("b", Z(3)),
    "set_existing": lambda td: td.set("a", Z(3, 2)),
    "set_nested": lambda td: td.set(("n", "b"), Z(3)),
    "setitem_rows": lambda td: td.__setitem__(0, td[1].clone()),
    "set_inplace": lambda td: td.set("a", Z(3, 2), inplace=True),
    "set_inplace_new": lambda td: td.set("b", Z(3), inplace=True),
    "set_": lambda td: td.set_("a", Z(3, 2)),
    "set__non_tensor": lambda td: td.set_("s", "x"),
    "set_non_tensor": lambda td: td.set_non_tensor("s", "x"),
    "update": lambda td: td.update({"a": Z(3, 2)}),
    "update_nothing": lambda td: td.update({}),
    "update_inplace": lambda td: td.update({"a": Z(3, 2)}, inplace=True),
    "update_inplace_new": lambda td: td.update({"q": Z(3)}, inplace=True),
    "update_": lambda td: td.update_({"a": Z(3, 2), "s": "x"}),
    "pop": lambda td: td.pop("a"),
    "pop_absent": lambda td: td.pop("zz", 3),
    "popitem": lambda td: td.popitem(),
    "del_": lambda td: td.del_(("n", "x")),
    "rename_key_": lambda td: td.rename_key_("a", "b"),
    "clear": lambda td: td.clear(),
    "setdefault": lambda td: td.setdefault("a", 1),
    "setdefault_new": lambda td: td.setdefault("b", Z(3)),
    "select_inplace": lambda td: td.select("a", inplace=True),
    "exclude_inplace": lambda td: td.exclude("a", inplace=True),
    "exclude_inplace_nothing": lambda td: td.exclude(inplace=True),
    "flatten_keys": lambda td: td.flatten_keys(),
    "flatten_keys_inplace": lambda td: td.flatten_keys(inplace=True),
    "split_keys_inplace": lambda td: td.split_keys(["a"], inplace=True),
    "batch_size": lambda td: setattr(td, "batch_size", []),
    "names": lambda td: setattr(td, "names", ["q"]),
    "unlock_child": lambda td: td["n"].unlock_(),
    "unlock_child_by_attribute": lambda td: setattr(td["n"], "is_locked", False),
    "unlock": lambda td: td.unlock_(),
    "copies": lambda td: [td.clone(), td.copy(), td.empty(), copy.copy(td), copy.deepcopy(td)],
    "select_shares_locked_child": lambda td: td.select("n"),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_locked_matches_oracle(program):
    def whole(p):
        td = example(p).lock_()
        return [program(td), td]

    run_both(whole)


def test_lock_reaches_nested_and_unlock_too():
    def program(p):
        td = example(p).lock_()
        nodes = [td, td["n"], td["n", "d"]]
        locked = [node.is_locked for node in nodes]
        td.unlock_()
        return locked + [node.is_locked for node in nodes]

    assert run_both(program) == [True] * 3 + [False] * 3


def test_shared_child_stays_locked_until_both_parents_unlock():
    child = ours.TensorDict({"x": Z(3)}, [3])
    first = ours.TensorDict({"n": child}, [3]).lock_()
    second = ours.TensorDict({"n": child}, [3]).lock_()
    with pytest.raises(LockedError, match="unlock that one first"):
        first.unlock_()
    assert first.is_locked
    assert child.is_locked
    common = ours.TensorDict({"p": first, "q": second}, [3]).lock_()
    common.unlock_()
    assert not first.is_locked
    assert not child.is_locked


def test_child_outlives_its_locked_parent_and_can_be_unlocked():
    def program(p):
        td = example(p).lock_()
        child = td["n"]
        del td
        gc.collect()
        child.unlock_()
        return child.is_locked

    assert run_both(program) is False


def test_locked_tree_has_no_reference_cycle():
    gc.collect()
    gc.disable()
    try:
        td = example(ours).lock_()
        gone = weakref.ref(td)
        del td
        assert gone() is None
    finally:
        gc.enable()


CONTEXTS = {
    "lock": (False, "lock_"),
    "lock_of_locked": (True, "lock_"),
    "unlock": (True, "unlock_"),
    "unlock_of_unlocked": (False, "unlock_"),
}


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "raises"])
@pytest.mark.parametrize(("locked", "method"), CONTEXTS.values(), ids=CONTEXTS)
def test_context_restores_the_lock(locked, method, fails):
    def program(p):
        td = example(p)
        td.is_locked = locked
        seen = []
        try:
            with getattr(td, method)() as inner:
                seen += [inner is td, td.is_locked]
                if fails:
                    raise KeyError("stop")
        except KeyError:
            pass
        return [*seen, td.is_locked]

    run_both(program)


def test_contexts_nest():
    td = example(ours)
    with td.lock_():
        with td.unlock_():
            td["new"] = Z(3)
        assert td.is_locked
    assert not td.is_locked


@pytest.mark.parametrize("locked", [False, True])
def test_flatten_keys_context_writes_back(locked):
    def program(p):
        td = example(p)
        td.is_locked = locked
        with td.flatten_keys() as flat:
            flat["n.x"] = torch.ones(3)
            if not locked:
                flat["n.q"] = Z(3)
                flat["new"] = Z(3)
        return td

    run_both(program)


def test_unflatten_keys_context_writes_back():
    def program(p):
        td = example(p).flatten_keys()
        with td.unflatten_keys() as nested:
            nested["n", "q"] = Z(3)
        return td

    run_both(program)


def test_flatten_keys_context_writes_back_after_an_exception():
    td = example(ours)

    def fail():
        with td.flatten_keys() as flat:
            flat["n.q"] = Z(3)
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        fail()
    assert ("n", "q") in td


def test_flat_result_does_not_keep_its_original_alive():
    td = example(ours)
    gone = weakref.ref(td)
    flat = td.flatten_keys()
    del td
    gc.collect()
    assert gone() is None
    assert "n.x" in flat


def test_plain_tensordict_as_context_does_nothing():
    def program(p):
        with example(p) as td:
            return td

    run_both(program)


def test_locked_message_names_entry_and_way_out():
    with pytest.raises(LockedError) as info:
        example(ours).lock_()["n", "q"] = Z(3)
    assert 'unlocked tensordict to write td["n", "q"]' in str(info.value)
    assert "set_" in str(info.value)
