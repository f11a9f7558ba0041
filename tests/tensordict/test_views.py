"""Views of keys, values and items: order, membership and set operations as the oracle's."""

from __future__ import annotations

import itertools

import pytest
import torch
from oracle import example, ours, run_both

from tdcompile.errors import InvalidKeyError

OPTIONS = [
    {"include_nested": nested, "leaves_only": leaves, "sort": sort}
    for nested, leaves, sort in itertools.product([False, True], repeat=3)
]


@pytest.mark.parametrize("method", ["keys", "values", "items"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(k for k in o if o[k]) or "flat")
def test_view_order_matches_oracle(method, options):
    run_both(lambda p: list(getattr(example(p), method)(**options)))


LEAVES = {
    "non_tensor": lambda p: p.is_leaf_nontensor,
    "all": lambda p: lambda kind: True,
    "none": lambda p: lambda kind: False,
    "default": lambda p: p.default_is_leaf,
}


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("is_leaf", LEAVES.values(), ids=LEAVES)
def test_is_leaf_matches_oracle(is_leaf, nested):
    run_both(lambda p: list(example(p).keys(nested, True, is_leaf=is_leaf(p))))


MEMBERS = ["a", "zz", "s", "n", ("n", "x"), ("n", "zz"), ("n", ("d", "z")), ("n",), ("a", "b"), 3]


@pytest.mark.parametrize("key", MEMBERS, ids=repr)
@pytest.mark.parametrize("options", OPTIONS[::2], ids=["flat", "leaves", "nested", "nested_leaves"])
def test_membership_matches_oracle(key, options):
    run_both(lambda p: key in example(p).keys(**options))


SETS = {
    "and": lambda k: k & {"a", "zz"},
    "or": lambda k: k | {"a", "zz"},
    "sub": lambda k: k - {"a", "zz"},
    "rsub": lambda k: {"a", "zz"} - k,
    "xor": lambda k: k ^ {"a", "zz"},
    "eq": lambda k: [k == {"a", "n", "s"}, k == {"a"}, k == ["a"]],
    "order": lambda k: [k <= {"a", "n", "s"}, k < {"a", "n", "s"}, k >= {"a"}],
    "isdisjoint": lambda k: k.isdisjoint({"q"}),
    "len": len,
}


@pytest.mark.parametrize("program", SETS.values(), ids=SETS)
def test_keys_are_a_set(program):
    run_both(lambda p: program(example(p).keys()))


def test_keys_of_two_tensordicts_compare():
    run_both(lambda p: example(p).keys() == example(p).keys())


def test_nested_keys_are_a_set():
    keys = example(ours).keys(include_nested=True)
    assert keys == set(keys)
    assert keys & {("n", "x"), "zz"} == {("n", "x")}


def test_keys_view_is_live():
    td = example(ours)
    keys, nested = td.keys(), td.keys(include_nested=True)
    td["w"] = torch.zeros(3)
    assert "w" in keys
    assert len(keys) == 4
    assert "w" in list(nested)


def test_flat_view_refuses_changes_in_a_loop():
    def program(p):
        td = example(p)
        for key in td.keys():  # noqa: SIM118
            td["q" + key] = torch.zeros(3)

    run_both(program)


def test_nested_view_allows_changes_in_a_loop():
    td = example(ours)
    for key in td.keys(include_nested=True, leaves_only=True):
        del td[key]
    assert td.filter_non_tensor_data().is_empty()


def test_no_key_in_keys_raises():
    with pytest.raises(InvalidKeyError, match="found 3 of type int"):
        3 in example(ours).keys()  # noqa: B015, SIM118


def test_nested_items_know_length_and_members():
    td = example(ours)
    items = td.items(include_nested=True)
    assert len(items) == 6
    assert (("n", "x"), td["n", "x"]) in items
    assert td["n", "x"] in td.values(include_nested=True)


def test_non_tensor_items_matches_oracle():
    run_both(lambda p: example(p).set(("n", "t"), "text").non_tensor_items(include_nested=True))
