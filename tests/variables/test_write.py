from __future__ import annotations

import dis

import pytest
import torch
from torch._dynamo.convert_frame import register_bytecode_hook

from tdcompile import TensorDict
from variables.checks import check, td, with_extras


def set_item(td):
    td["z"] = td["a"] + 1


def set_item_blind(td, x):
    td["z"] = x + 1


def set_method(td):
    td.set("z", td["a"] + 1)


def set_existing(td):
    td["a"] = td["b"] * 2


def set_nested(td):
    td["n", "x"] = td["a"] * 2


def set_nested_through(td):
    td["n"]["z"] = td["n"]["x"] + td["a"]


def set_new_nested(td):
    td["m", "k"] = td["a"] * 2


def set_dict(td):
    td["m"] = {"k": td["a"] * 2}


def update(td):
    td.update({"a": td["a"] + 1, "z": td["b"] * 2})


def update_nested(td):
    td.update({"n": {"x": td["a"] + 1, "w": td["b"]}})


def update_keywords(td):
    td.update(a=td["a"] + 1)


def update_in_place(td):
    td.update_({"a": td["a"] + 1, "b": td["b"] * 2})


def set_in_place(td):
    td.set_("a", td["a"] + 1)


def set_in_place_nested(td):
    td.set_(("n", "x"), td["a"] + 1)


def set_with_inplace_flag(td):
    td.set("a", td["a"] + 1, inplace=True)


def setdefault_present(td):
    return td.setdefault("a", td["b"]) + 1


def setdefault_absent(td):
    return td.setdefault("z", td["b"]) + 1


def delete(td):
    x = td["a"] + 1
    del td["a"]
    return x


def delete_nested(td):
    x = td["a"] + 1
    del td["n", "x"]
    return x


def delete_method(td):
    x = td["a"] + 1
    td.del_("a")
    return x


def pop(td):
    return td.pop("a") + 1


def pop_nested(td):
    return td.pop(("n", "x")) + 1


def pop_absent_with_default(td):
    return td.pop("z", td["b"]) + 1


def rename(td):
    td.rename_key_("a", "z")
    return td["z"] + 1


def rename_nested(td):
    td.rename_key_(("n", "x"), ("n", "z"))
    return td["n", "z"] + 1


def rename_over_existing(td):
    td.rename_key_("a", "b")
    return td["b"] + 1


def pop_nested_and_write(td):
    nested = td.pop("n")
    nested["z"] = td["a"] + 1
    return nested


def move_nested(td):
    td["m"] = td.pop("n")
    td["m", "z"] = td["a"] + 1


def swap_nested(td):
    td["n", "inner"] = TensorDict({"q": td["a"] + 1}, batch_size=[3])
    td["n"], td["m"] = td["n", "inner"], td["n"]


def setdefault_nested(td):
    td.setdefault("m", TensorDict({}, batch_size=td.batch_size))["k"] = td["a"] + 1
    return td["m"]


def empty_and_fill_nested(td):
    for key in ("x", "y"):
        del td["n", key]
    td["n", "w"] = td["a"] + 1


def set_in_loop(td):
    for i in range(3):
        td["k", str(i)] = td["a"] + i


def rename_in_loop(td):
    for key in ("a", "b"):
        td.rename_key_(key, "new_" + key)
    return td["new_a"] + 1


def set_text(td):
    td["z"] = "text"
    return td["a"] + 1


def set_object(td):
    td.set_non_tensor("z", [1, 2])
    return td["a"] + 1


ROW_PROGRAMS = [
    pop_nested_and_write,
    move_nested,
    swap_nested,
    setdefault_nested,
    empty_and_fill_nested,
    set_in_loop,
    rename_in_loop,
    set_text,
    set_object,
    set_item,
    set_method,
    set_existing,
    set_nested,
    set_nested_through,
    set_new_nested,
    set_dict,
    update,
    update_nested,
    update_keywords,
    update_in_place,
    set_in_place,
    set_in_place_nested,
    set_with_inplace_flag,
    setdefault_present,
    setdefault_absent,
    delete,
    delete_nested,
    delete_method,
    pop,
    pop_nested,
    pop_absent_with_default,
    rename,
    rename_nested,
    rename_over_existing,
]


def named(program):
    return program.__name__.replace("_", "-")


@pytest.mark.parametrize("program", ROW_PROGRAMS, ids=named)
def test_write_other_keys_vary_compiles_once(program):
    # R1 of the known limits; the comparison covers key order, which is W2.
    check(program, with_extras())


def test_write_blind_compiles_once():
    check(set_item_blind, [(value, torch.ones(3, 2)) for (value,) in with_extras()])


def swap(td):
    td["a"], td["c"] = td["c"], td["a"]
    td["z"] = td["b"] + 1


def carry(td):
    td["z"] = td["a"]
    td["y"] = td["b"] + 1


def carry_twice(td):
    td["z"] = td["a"]
    td["y"] = td["a"]
    return td["a"] + 1


def carry_and_drop(td):
    td["z"] = td["a"]
    del td["a"]
    return td["b"] + 1


def rotate(td):
    td["a"], td["b"], td["c"] = td["b"], td["c"], td["a"]
    return td["a"].sum()


def delete_and_set_again(td):
    x = td["a"]
    del td["a"]
    td["a"] = x + 1


def delete_and_set_same(td):
    x = td["a"]
    del td["a"]
    td["a"] = x
    return td["b"] + 1


def overwrite(td):
    td["a"] = td["a"] + 1


def overwrite_twice(td):
    td["a"] = td["a"] + 1
    td["a"] = td["a"] * 2


def set_then_delete_unread(td, x):
    td["z"] = x + 1
    del td["z"]
    return x * 2


def set_delete_set_unread(td, x):
    td["z"] = x + 1
    del td["z"]
    td["z"] = x * 2


def cancel_out(td):
    x = td["a"]
    td["a"] = x + 1
    td["a"] = x
    return x * 2


def rename_there_and_back(td):
    td.rename_key_("a", "z")
    td.rename_key_("z", "a")
    return td["a"] + 1


def pop_and_move_to_end(td):
    td["a"] = td.pop("a")
    return td["b"] + 1


def many(td):
    td["z"] = td["a"] + 1
    del td["b"]
    td["y"] = td["z"] * 2
    td.rename_key_("y", "w")
    td["b"] = td["w"] + 1
    td.pop("z")


def with_c(value):
    value["c"] = value["b"] + 7
    return value


@pytest.mark.parametrize(
    "program",
    [
        swap,
        carry,
        carry_twice,
        carry_and_drop,
        rotate,
        delete_and_set_again,
        delete_and_set_same,
        overwrite,
        overwrite_twice,
        cancel_out,
        rename_there_and_back,
        pop_and_move_to_end,
        many,
    ],
    ids=named,
)
def test_edits_replayed_keep_order_and_identity(program):
    inputs = with_extras(lambda: with_c(td()))
    # Another order of the keys that the program does name.
    inputs.append((inputs[0][0].select("c", "b", "n", "a"),))
    inputs.append((inputs[0][0].select("n", "a", "c", "b"),))
    check(program, inputs)


@pytest.mark.parametrize("program", [set_then_delete_unread, set_delete_set_unread], ids=named)
@pytest.mark.parametrize("first", ["present", "absent"])
def test_set_then_delete_presence_never_read_is_right_both_ways(program, first):
    x = torch.ones(3, 2)
    present, absent = (lambda: td(z=torch.zeros(3))), td
    makers = [present, absent] if first == "present" else [absent, present]
    check(program, [(make(), x) for make in [*makers, *makers]])


def stores_of(program, *args):
    """How often the compiled frame of `program` stores into a dictionary."""
    found = []

    def hook(code, new_code):
        if code is program.__code__:
            found.append([i.opname for i in dis.get_instructions(new_code)])

    handle = register_bytecode_hook(hook)
    try:
        check(program, [args])
    finally:
        handle.remove()
    (names,) = found
    return names.count("STORE_SUBSCR")


@pytest.mark.parametrize(
    ("program", "stores"),
    [(cancel_out, 0), (rename_there_and_back, 1), (overwrite, 1), (overwrite_twice, 1), (swap, 3)],
    ids=lambda value: named(value) if callable(value) else str(value),
)
def test_edit_log_is_replayed_once_a_key(program, stores):
    assert stores_of(program, with_c(td())) == stores


@pytest.mark.parametrize("program", [set_nested, set_new_nested], ids=named)
def test_set_nested_presence_of_the_nested_one_changes_recompiles_once(program):
    def extra():
        return td(m=TensorDict({"k": torch.zeros(3, 2)}, batch_size=[3]))

    bare = [td(nested=False)] if program is set_nested else []
    check(program, [td(), extra(), td(), *bare, extra()], graphs=2)


def in_place_add(td):
    td["a"] += 1


def in_place_method(td):
    td["n", "x"].mul_(2)


def in_place_zero(td):
    td["a"].zero_()
    td["b"] = td["b"] + 1


@pytest.mark.parametrize("program", [in_place_add, in_place_method, in_place_zero], ids=named)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_write_into_leaf_compiles_once(program, backend):
    check(program, with_extras(), backend=backend)


def clear(td):
    x = td["a"] + 1
    td.clear()
    return x


def empty_in_place(td):
    x = td["a"] + 1
    for key in list(td.keys()):
        del td[key]
    td["z"] = x


@pytest.mark.parametrize("program", [clear, empty_in_place], ids=named)
def test_clear_keys_vary_is_right(program):
    inputs = with_extras(lambda: td(nested=False))[:4]
    keys_matter = program is empty_in_place
    check(program, inputs, graphs=4 if keys_matter else 1)
