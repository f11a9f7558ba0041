from __future__ import annotations

import pytest
import torch
from helpers import guards_of

from tdcompile import TensorDict
from variables.checks import check, td, with_extras


def named(value):
    return value.__name__.replace("_", "-") if callable(value) else str(value)


def copy(td):
    return td.copy(), td["a"] + 1


def copy_and_write(td):
    other = td.copy()
    other["z"] = td["a"] + 1
    return other


def copy_and_overwrite(td):
    other = td.copy()
    other["a"] = td["a"] + 1
    return other


def copy_and_delete(td):
    other = td.copy()
    x = other.pop("a") + 1
    return other, x


def copy_and_move_to_end(td):
    other = td.copy()
    other["a"] = other.pop("a")
    return other, td["b"] + 1


def copy_and_write_nested(td):
    other = td.copy()
    other["n", "x"] = td["a"] + 1
    return other


def copy_then_write_input_nested(td):
    other = td.copy()
    td["n", "x"] = td["a"] + 1
    return other


def clone_shallow(td):
    other = td.clone(False)
    other["z"] = td["a"] + 1
    return other


def clone_shallow_keyword(td):
    other = td.clone(recurse=False)
    other["n"]["z"] = td["a"] + 1
    return other


def clone_shallow_twice(td):
    other = td.clone(False).clone(False)
    other["n", "x"] = td["a"] + 1
    return other, td.clone(False)


def replace(td):
    return td.replace({"a": td["a"] + 1})


def replace_keyword(td):
    return td.replace(a=td["a"] + 1)


def exclude(td):
    return td.exclude("a"), td["b"] + 1


def exclude_absent(td):
    return td.exclude("absent"), td["b"] + 1


def exclude_nested(td):
    return td.exclude(("n", "x")), td["b"] + 1


def select(td):
    return td.select("b", "a"), td["b"] + 1


def select_not_strict(td):
    return td.select("b", "absent", strict=False), td["b"] + 1


def select_nested(td):
    return td.select(("n", "x")), td["b"] + 1


def select_in_place(td):
    return td.select("a", inplace=True), td["a"] + 1


def exclude_in_place(td):
    return td.exclude("a", inplace=True), td["b"] + 1


def empty(td):
    other = td.empty()
    other["z"] = td["a"] + 1
    return other


def snapshot_before_write(td):
    before = td.copy()
    td["a"] = td["a"] + 1
    td["z"] = td["b"] * 2
    return before, td


def snapshot_after_write(td):
    td["a"] = td["a"] + 1
    del td["b"]
    after = td.copy()
    return after, td


def snapshots_around_writes(td):
    before = td.copy()
    td["a"] = td["a"] + 1
    between = td.copy()
    del td["a"]
    td["b"] = td["b"] + 1
    after = td.copy()
    after["a"] = before["a"]
    return td, after, between, before


def snapshot_around_nested_write(td):
    before = td.copy()
    td["n"]["x"] = td["a"] + 1
    after = td.copy()
    after["n"]["y"] = td["b"] + 1
    return before, td, after


def nested_write_then_copy(td):
    td["n"]["x"] = td["a"] + 1
    return td.copy()


def entries_of_snapshot_moved_to_input(td):
    other = td.copy()
    td["z"] = other["a"]
    other["z"] = td["b"] + 1
    return other


ROW_PROGRAMS = [
    copy,
    copy_and_write,
    copy_and_overwrite,
    copy_and_delete,
    copy_and_move_to_end,
    copy_and_write_nested,
    copy_then_write_input_nested,
    clone_shallow,
    clone_shallow_keyword,
    clone_shallow_twice,
    replace,
    replace_keyword,
    exclude,
    exclude_absent,
    exclude_nested,
    select,
    select_not_strict,
    select_nested,
    select_in_place,
    exclude_in_place,
    empty,
    snapshot_before_write,
    snapshot_after_write,
    snapshots_around_writes,
    snapshot_around_nested_write,
    nested_write_then_copy,
    entries_of_snapshot_moved_to_input,
]


@pytest.mark.parametrize("program", ROW_PROGRAMS, ids=named)
def test_functional_update_other_keys_vary_compiles_once(program):
    # R3; the comparison covers which leaf is the very same object.
    check(program, with_extras())


@pytest.mark.parametrize(
    "program", [snapshot_around_nested_write, nested_write_then_copy], ids=named
)
@pytest.mark.parametrize("order", ["shared-last", "shared-first"])
def test_copy_after_nested_write_unread_key_holds_the_same_nested_is_right(program, order):
    def shared():
        value = td()
        value["m"] = value["n"]
        return value

    makers = [td, shared] if order == "shared-last" else [shared, td]
    check(program, [make() for make in [*makers, *makers]], graphs=1)


@pytest.mark.parametrize("program", [copy, copy_and_write, replace, exclude, select], ids=named)
def test_functional_update_guards_do_not_grow_with_untouched_keys(program):
    many = td(**{f"k{i}": torch.zeros(3) for i in range(200)})
    assert len(guards_of(program, many)) == len(guards_of(program, td()))


@pytest.mark.parametrize("program", [copy_and_write, copy_and_delete, exclude], ids=named)
@pytest.mark.parametrize("order", ["tensor-first", "nested-first"])
def test_copy_of_unread_entry_that_becomes_nested_is_right(program, order):
    # An entry that the trace never looks at is copied if it is a tensordict, whatever it was then.
    def tensor():
        return td(k=torch.zeros(3))

    def nested():
        return td(
            k=TensorDict({"x": torch.zeros(3), "y": TensorDict({}, batch_size=[3])}, batch_size=[3])
        )

    makers = [tensor, nested] if order == "tensor-first" else [nested, tensor]
    check(program, [make() for make in [*makers, *makers, td]])


def pass_read_entry(td):
    other = td.copy()
    return other, other["k"] is td["k"], td["a"] + 1


@pytest.mark.parametrize("order", ["tensor-first", "nested-first"])
def test_copy_of_read_entry_that_becomes_nested_is_right(order):
    def tensor():
        return td(k=torch.zeros(3))

    def nested():
        return td(k=TensorDict({"x": torch.zeros(3)}, batch_size=[3]))

    makers = [tensor, nested] if order == "tensor-first" else [nested, tensor]
    check(pass_read_entry, [make() for make in [*makers, *makers]], graphs=2)


@pytest.mark.parametrize(
    "program", [copy_and_write, replace, exclude, select, clone_shallow], ids=named
)
def test_functional_update_of_locked_input_is_as_in_eager(program):
    check(program, [td().lock_(), td(p=torch.zeros(3)).lock_()])


def deep_clone(td):
    other = td.clone()
    other["z"] = td["a"] + 1
    return other


@pytest.mark.parametrize(
    "value", [td, lambda: td(k="text"), lambda: td().lock_()], ids=["plain", "text", "locked"]
)
def test_deep_clone_traces_whole(value):
    check(deep_clone, [value(), value()])
