"""Shape operations after ``with``: what a block does to the view is written back."""

from __future__ import annotations

import pytest
import torch
from oracle import assert_same, describe, oracle, ours

import tdcompile

OPERATIONS = {
    "view": lambda td: td.view(-1),
    "view_sizes": lambda td: td.view(4, 3),
    "transpose": lambda td: td.transpose(0, 1),
    "permute": lambda td: td.permute(1, 0),
    "movedim": lambda td: td.movedim(0, 1),
    "swapdims": lambda td: td.swapdims(0, 1),
    "squeeze": lambda td: td.squeeze(2),
    "squeeze_nothing": lambda td: td.squeeze(0),
    "unsqueeze": lambda td: td.unsqueeze(1),
    "unsqueeze_last": lambda td: td.unsqueeze(-1),
    "flatten": lambda td: td.flatten(0, 1),
    "unflatten": lambda td: td.unflatten(1, [2, 2]),
    "flip": lambda td: td.flip(0),
    "flatten_keys": lambda td: td.flatten_keys("."),
    # Copies: nothing is written back.
    "reshape": lambda td: td.reshape(12),
    "index": lambda td: td[0],
    "clone": lambda td: td.clone(),
}


def add(td, view):
    view["new"] = view["a"] + 1


def add_nested(td, view):
    view["q", "z"] = torch.ones(*view.batch_size, 2)


def replace(td, view):
    view["a"] = torch.zeros_like(view["a"])


def in_place(td, view):
    view.set_("a", view["a"] * 2)


def delete(td, view):
    del view["a"]


def nothing(td, view):
    pass


BODIES = {
    "add": add,
    "add_nested": add_nested,
    "replace": replace,
    "in_place": in_place,
    "delete": delete,
    "nothing": nothing,
}


def make(package, batch_size=(3, 4)):
    count = 1
    for size in batch_size:
        count *= size
    values = torch.arange(float(count)).reshape(batch_size)
    td = package.TensorDict({"a": values, "n": {"b": values.unsqueeze(-1) + 1}}, batch_size)
    td.names = list("pqrs")[: len(batch_size)]
    return td


def size_for(name):
    return (3, 4, 1) if name.startswith("squeeze") else (3, 4)


def program(operation, body):
    def run(td):
        with operation(td) as view:
            body(td, view)
        return td

    return run


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_block_over_a_view_matches_oracle(name, body):
    run = program(OPERATIONS[name], body)
    result, expected = run(make(ours, size_for(name))), run(make(oracle, size_for(name)))
    assert_same(describe(result), describe(expected))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_block_over_a_view_compiled_matches_eager(name, body):
    run = program(OPERATIONS[name], body)
    td = make(ours, size_for(name))
    with tdcompile.install():
        result = torch.compile(run, fullgraph=True, backend="eager")(td)
    assert result is td
    assert_same(describe(td), describe(run(make(ours, size_for(name)))))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_block_that_raises_writes_back(compiled):
    def run(td):
        try:
            with td.view(-1) as view:
                view["new"] = view["a"] + 1
                raise ValueError
        except ValueError:
            return td

    td = make(ours)
    with tdcompile.install():
        result = torch.compile(run, fullgraph=True, backend="eager")(td) if compiled else run(td)
    assert torch.equal(result["new"], td["a"] + 1)


def test_block_over_a_locked_tensordict_writes_values_in_place():
    td = make(ours).lock_()
    leaf = td["a"]
    with td.transpose(0, 1).unlock_() as view:
        view["a"] = torch.zeros(4, 3)
    with td.transpose(0, 1) as view:
        view.set_("a", torch.ones(4, 3))
    assert td.is_locked
    assert td["a"] is leaf
    assert (leaf == 1).all()


def test_squeeze_of_all_dimensions_is_written_back():
    td = make(ours, (3, 1, 4, 1))
    with td.squeeze() as view:
        view["new"] = torch.ones(3, 4, 2)
    assert td["new"].shape == (3, 1, 4, 1, 2)


def test_view_that_a_compiled_function_returns_makes_no_more_outputs():
    outputs = []

    def count(graph, inputs):
        outputs.append(len(graph.graph.output_node().args[0]))
        return graph

    with tdcompile.install():
        torch.compile(lambda td: (td + 1).transpose(0, 1), backend=count)(make(ours))
    assert outputs == [2]
