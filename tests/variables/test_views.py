from __future__ import annotations

import pytest
import torch

from tdcompile import TensorDict
from variables.checks import check, td, with_extras


def named(value):
    return value.__name__.replace("_", "-") if callable(value) else str(value)


def keys_list(td):
    return list(td.keys()), td["a"] + 1


def keys_nested(td):
    return list(td.keys(True)), list(td.keys(True, True)), td["a"] + 1


def keys_sorted(td):
    return sorted(td.keys()), td["a"] + 1


def values_list(td):
    return [value for value in td.values() if isinstance(value, torch.Tensor)], td["a"] + 1


def values_leaves(td):
    return [value + 1 for value in td.values(True, True)]


def items_dict(td):
    return {key: value for key, value in td.items()}, td["a"] + 1  # noqa: C416


def items_nested(td):
    return [(key, value * 2) for key, value in td.items(True, True)]


def iterate_keys(td):
    total = 0
    for key in td.keys():  # noqa: SIM118 - a tensordict iterates over its rows
        if key != "n":
            total = total + td[key].sum()
    return total


def count(td):
    return td["a"] * len(td.keys())


def is_empty(td):
    return td["a"] + (1 if td.is_empty() else 2)


def key_set_operations(td):
    common = set(td.keys()) & {"a", "p", "q"}
    return td["a"] * len(common)


def write_while_listing(td):
    for key in list(td.keys()):
        if key != "n":
            td[key] = td[key] + 1


def write_prefixed(td):
    for key, value in list(td.items()):
        if isinstance(value, torch.Tensor):
            td["new_" + key] = value + 1


def delete_listed(td):
    x = td["a"] + 1
    for key in [key for key in td.keys() if key in ("a", "p")]:  # noqa: SIM118
        del td[key]
    return x


def listed_after_write(td):
    td["z"] = td["a"] + 1
    del td["b"]
    td["b"] = td["z"] + 1
    return list(td.keys())


def listed_copy_after_write(td):
    other = td.copy()
    other["z"] = td["a"] + 1
    other.pop("b")
    return list(other.keys()), [key for key, _ in td.items()]


def dict_of(td):
    return td.to_dict(), td["a"] + 1


def update_from_other(td):
    other = TensorDict({"q": td["a"] + 1, "a": td["a"] * 2}, batch_size=[3])
    td.update(other)


def constructed_from(td):
    return TensorDict(dict(td.items()), batch_size=[3]), td["a"] + 1


PROGRAMS = [
    keys_list,
    keys_nested,
    keys_sorted,
    values_list,
    values_leaves,
    items_dict,
    items_nested,
    iterate_keys,
    count,
    is_empty,
    key_set_operations,
    write_while_listing,
    write_prefixed,
    delete_listed,
    listed_after_write,
    listed_copy_after_write,
    dict_of,
    constructed_from,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_view_keys_vary_is_right(program):
    # These depend on all keys: one compilation a key set, and one an order where order shows.
    inputs = [(value,) for (value,) in with_extras()[:4]]
    inputs += [(value,) for (value,) in with_extras()[:4]]
    ignores_order = program is count
    check(program, inputs, graphs=3 if ignores_order else 4)


def test_update_from_new_tensordict_keys_vary_compiles_once():
    check(update_from_other, with_extras())


@pytest.mark.parametrize("program", [keys_list, items_dict, iterate_keys, dict_of], ids=named)
def test_view_order_varies_is_right(program):
    inputs = [td(), td().select("b", "a", "n"), td(), td().select("n", "b", "a")]
    check(program, inputs, graphs=3)


def test_number_of_keys_order_varies_compiles_once():
    check(count, [td(), td().select("b", "a", "n"), td().select("n", "b", "a")])


def rows(td):
    return [row["a"] + 1 for row in td]


def unbound(td):
    first, *_, last = td.unbind(0)
    return first["n", "x"] + last["a"]


def test_iteration_over_rows_traces_whole():
    check(rows, [td(), td()])
    check(unbound, [td(), td()])


def keys_then_write(td):
    keys = td.keys()
    td["z"] = td["a"] + 1
    return "z" in keys, "a" in keys


def test_view_taken_before_a_write_sees_it():
    check(keys_then_write, with_extras()[:4])
