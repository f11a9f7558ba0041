from __future__ import annotations

import pytest
import torch

from tdcompile import TensorDict
from variables.checks import check, td, with_extras


def named(value):
    return value.__name__.replace("_", "-") if callable(value) else str(value)


def pending_write(td):
    td["z"] = td["a"] + 1
    torch._dynamo.graph_break()
    td["y"] = td["z"] * 2
    return td["y"]


def pending_delete(td):
    x = td.pop("a")
    torch._dynamo.graph_break()
    td["y"] = x * 2


def pending_without_node_before(td):
    td.rename_key_("a", "z")
    torch._dynamo.graph_break()
    return td["z"] + 1


def pending_move(td):
    td["a"] = td.pop("a") + 1
    torch._dynamo.graph_break()
    td["b"] = td.pop("b") + 1


def pending_nested(td):
    td["n", "z"] = td["a"] + 1
    torch._dynamo.graph_break()
    td["n", "x"] = td["n", "z"] * 2


def pending_copy(td):
    other = td.copy()
    td["a"] = td["a"] + 1
    other["n", "x"] = td["a"] * 3
    torch._dynamo.graph_break()
    other["y"] = other["a"] * 2
    td["n", "y"] = td["b"] + 1
    return other


def pending_new(td):
    made = TensorDict({"s": td["a"] + 1, "n": td["n"]}, batch_size=td.batch_size)
    torch._dynamo.graph_break()
    made["t"] = made["s"] * 2
    td["m"] = made
    return made


def pending_new_unused(td):
    made = TensorDict({"s": td["a"] + 1}, batch_size=td.batch_size)
    x = made["s"] * 2
    torch._dynamo.graph_break()
    return x + 1


def pending_leafwise(td):
    other = td * 2
    torch._dynamo.graph_break()
    return other + td


def pending_in_place(td):
    td += 1
    before = td["a"]
    torch._dynamo.graph_break()
    td["a"] = before * 2


def pending_lock(td):
    td["z"] = td["a"] + 1
    td.lock_()
    torch._dynamo.graph_break()
    return td["z"] * 2, td.is_locked


def pending_alias(td):
    same = td
    nested = td["n"]
    nested["z"] = td["a"] + 1
    torch._dynamo.graph_break()
    same["y"] = nested["z"] * 2
    nested["w"] = nested["x"] + 1
    return same is td, nested is td["n"]


def pending_cancelled(td):
    x = td["a"]
    td["a"] = x + 1
    td["a"] = x
    torch._dynamo.graph_break()
    return td["a"] * 2


def pending_method(td):
    # a bound method that lives across the break
    read = td.get
    td["z"] = td["a"] + 1
    torch._dynamo.graph_break()
    return read("z") * 2


def pending_keys(td):
    keys = list(td.keys())
    td["z"] = td["a"] + 1
    torch._dynamo.graph_break()
    return keys, list(td.keys()), td["z"] * 2


def pending_in_containers(td):
    holder = {"td": td, "new": [TensorDict({"s": td["a"] + 1}, batch_size=[3])]}
    td["z"] = td["a"] + 1
    torch._dynamo.graph_break()
    holder["new"][0]["t"] = holder["td"]["z"] * 2
    return holder


def pending_in_list_twice(td):
    made = TensorDict({"s": td["a"] + 1}, batch_size=[3])
    both = [made, made]
    torch._dynamo.graph_break()
    both[0]["t"] = td["a"] + 2
    return both, made


PROGRAMS = [
    pending_write,
    pending_delete,
    pending_move,
    pending_nested,
    pending_copy,
    pending_new,
    pending_new_unused,
    pending_leafwise,
    pending_in_place,
    pending_lock,
    pending_alias,
    pending_cancelled,
    pending_method,
    pending_keys,
    pending_in_containers,
    pending_in_list_twice,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_break_among_edits_resumes_right(program):
    graphs = 1 if program is pending_delete else 2
    check(program, [td(), td()], graphs=graphs, breaks=1)


def test_break_with_edits_and_no_node_resumes_right():
    check(pending_without_node_before, [td(), td()], graphs=1, breaks=1)


@pytest.mark.parametrize(
    "program", [pending_write, pending_delete, pending_move, pending_nested], ids=named
)
def test_break_among_edits_other_keys_vary_compiles_once(program):
    graphs = 1 if program is pending_delete else 2
    check(program, with_extras(), graphs=graphs, breaks=1)


def break_in_branch(td, flag):
    td["z"] = td["a"] + 1
    if flag.sum() > 0:
        td["z"] = td["z"] * 2
    return td["z"] + 1


def test_data_dependent_branch_with_pending_edits_is_right():
    on, off = torch.ones(1), torch.zeros(1)
    check(break_in_branch, [(td(), on), (td(), off), (td(), on)], graphs=3, breaks=None)


def break_in_loop(td):
    for step in range(3):
        td[f"k{step}"] = td["a"] + step
        torch._dynamo.graph_break()
    return td["k2"] + 1


def break_in_function(td):
    def inner(td):
        td["z"] = td["a"] + 1
        torch._dynamo.graph_break()
        td["y"] = td["z"] * 2

    inner(td)
    return td["y"] + 1


def break_in_with(td):
    with torch.no_grad():
        td["z"] = td["a"] + 1
        torch._dynamo.graph_break()
        td["y"] = td["z"] * 2
    return td["y"] + 1


def printed(td):
    td["z"] = td["a"] + 1
    print("keys:", list(td.keys()))
    td["y"] = td["z"] * 2
    return td["y"]


def outcomes(program):
    """Run and compare without counting: how upstream splits such frames is its own business."""
    import tdcompile
    from variables.checks import duplicate, outcome_of, same

    calls = [(value,) for (value,) in with_extras()[:3]]
    expected = [outcome_of(program, args) for args in duplicate(calls)]
    torch._dynamo.reset()
    with tdcompile.install(strict=True):
        compiled = torch.compile(program, backend="eager")
        found = [outcome_of(compiled, args) for args in calls]
    for eager, outcome in zip(expected, found, strict=True):
        assert not list(same(eager, outcome))


@pytest.mark.parametrize(
    "program", [break_in_loop, break_in_function, break_in_with, printed], ids=named
)
def test_break_inside_other_constructs_is_right(program, capsys):
    outcomes(program)


@torch._dynamo.disable
def eager_helper(td):
    td["from_eager"] = td["z"] * 2
    del td["b"]
    return td


def calls_eager_helper(td):
    td["z"] = td["a"] + 1
    returned = eager_helper(td)
    td["after"] = td["from_eager"] + 1
    return returned is td, "b" in td.keys()  # noqa: SIM118


def passes_new_to_eager_helper(td):
    made = td.copy()
    made["z"] = td["a"] + 1
    eager_helper(made)
    return made["from_eager"] + 1, made, td.get("z", None)


def leaf_of_disabled(td):
    td["z"] = td["a"] + 1
    torch._dynamo.disable(lambda x: x.add_(1))(td["z"])
    return td["z"] * 2


@pytest.mark.parametrize(
    "program", [calls_eager_helper, passes_new_to_eager_helper, leaf_of_disabled], ids=named
)
def test_call_of_disabled_function_sees_edits_and_its_own_are_seen(program):
    outcomes(program)


def test_break_with_edits_under_aot_eager_is_right():
    check(pending_copy, [td(), td()], graphs=2, breaks=1, backend="aot_eager")


def tensor_item(td):
    td["z"] = td["a"] + 1
    n = int(td["b"].sum().item())
    td["y"] = td["z"] * n
    return td


def test_item_with_pending_edits_is_right():
    check(tensor_item, [td(), td()], graphs=2, breaks=1)
