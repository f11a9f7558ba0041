"""Where the passes run: on frames with tensordicts, and on no other."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils import _pytree as pytree

import tdcompile
from tdcompile import TensorDict, plugin
from tdcompile.guards import policy
from tdcompile.guards.entries import GuardEntry
from tdcompile.guards.passes import PASSES


def entry(kind, name, **facts):
    return GuardEntry(**{"kind": kind, "name": name, "root": "", "source": name} | facts)


OWN = "__import_tdcompile_dot_tensordict_dot_mapping"
ENTRIES = (
    entry("TENSOR_MATCH", "leaf", parents=(("entries", "a"),)),
    entry("ID_MATCH", f"G['{OWN}'].Tensor", root=OWN),
    entry("ID_MATCH", "G['__builtins_dict___0']['len']", root="__builtins_dict___0", is_own=True),
    entry("DICT_CONTAINS", "entries", key="a"),
    entry("DICT_CONTAINS", "entries", key="b"),
    entry("SEQUENCE_LENGTH", "__import__('torch').utils._pytree.SUPPORTED_NODES"),
)


def test_narrow_names_the_pass_that_drops_each_guard():
    assert policy.narrow(ENTRIES) == [
        None,
        "library_globals",
        "own_builtins",
        "implied_presence",
        None,
        "pytree_registry",
    ]


def test_narrow_without_entries_is_empty():
    assert policy.narrow([]) == []


def test_narrow_first_pass_in_order_wins():
    name = "__import__('torch').utils._pytree.SUPPORTED_NODES"
    both = entry("SEQUENCE_LENGTH", name, root=OWN)
    assert policy.narrow([both]) == [PASSES[0].name]


# ---- frames without tensordicts ----------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x).relu()


@dataclass
class Point:
    x: torch.Tensor
    tags: list = field(default_factory=list)


def plain(x):
    return x * 2 + 1


def dict_read_write(data):
    data["z"] = data["a"] + 1
    return "k" in data, data.get("b", None), list(data.keys())


def dict_update(data):
    data.update({"y": data["a"] * 2})
    del data["a"]
    return {**data, "w": data["y"] + len(data)}


def list_append(values):
    values.append(values[0] + 1)
    return sum(value.sum() for value in values)


def tree(data):
    return pytree.tree_map(lambda x: x + 1, data)


def attributes(point):
    point.tags.append("seen")
    point.x = point.x + len(point.tags)
    return point.x


def operators(x):
    return (x + 1) * x - (2 / x) ** 2, (x > 1) & (x < 3), -x, abs(x), x @ x.T


def in_place(x):
    x += 1
    x.mul_(2)
    return x.sum(0)


def exceptions(data):
    try:
        return data["absent"]
    except KeyError:
        return data["a"] + 1


def closure():
    scale = torch.full((), 3.0)

    def program(x):
        return x * scale

    return program


def data():
    return {"a": torch.ones(2), "b": torch.zeros(2)}


PROGRAMS = {
    "tensor": (plain, lambda: torch.ones(2, 2)),
    "dict": (dict_read_write, data),
    "dict-update": (dict_update, data),
    "list": (list_append, lambda: [torch.ones(2)]),
    "module": (Net(), lambda: torch.ones(2, 2)),
    "pytree": (tree, lambda: {"x": torch.ones(2), "y": [torch.zeros(2), (torch.ones(1),)]}),
    "attributes": (attributes, lambda: Point(torch.ones(2))),
    "operators": (operators, lambda: torch.ones(2, 2) * 2),
    "in-place": (in_place, lambda: torch.ones(2, 2)),
    "exceptions": (exceptions, data),
    "closure": (closure(), lambda: torch.ones(2)),
}


def compiled_form(program, make):
    """The graphs and the guards of a program as text, without numbers that differ each time."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    torch.compile(program, backend=counter, fullgraph=True)(make())
    code = (program.forward if isinstance(program, torch.nn.Module) else program).__code__
    entries = torch._dynamo.eval_frame._debug_get_cache_entry_list(code)
    guards = "\n".join(str(entry.guard_manager) for entry in entries)
    graphs = "\n".join(graph.print_readable(print_output=False) for graph in counter.graphs)
    return [re.sub(r"0x[0-9a-f]+|\d{6,}|_\d+\b", "N", text) for text in (guards, graphs)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_frame_without_tensordict_has_the_same_graph_and_guards(name):
    program, make = PROGRAMS[name]
    assert not plugin.is_installed()
    before = compiled_form(program, make)
    assert "GuardManager" in before[0]
    assert "forward" in before[1]
    with tdcompile.install(strict=True):
        during = compiled_form(program, make)
    after = compiled_form(program, make)
    assert during == before
    assert after == before


def mixed(value, other):
    return value["a"] + other["a"]


def test_frame_with_tensordict_is_narrowed_only_while_installed():
    def narrowed(form):
        return "DICT_CONTAINS" not in form[0]

    def make():
        return TensorDict({"a": torch.ones(2)}, batch_size=[2])

    def program(value):
        return value["a"] + 1

    with tdcompile.install(strict=True):
        assert narrowed(compiled_form(program, make))
        first = torch.compile(mixed, backend="eager", fullgraph=True)(make(), {"a": torch.ones(2)})
    assert torch.equal(first, torch.full((2,), 2.0))


def test_uninstall_restores_every_patched_place():
    with tdcompile.install(strict=True):
        patches = plugin._state.patches.patches
        ours = [patch.read() for patch in patches]
    restored = [patch.read() for patch in patches]
    with tdcompile.install(strict=True):
        again = [patch.read() for patch in plugin._state.patches.patches]
    assert len(patches) >= 5
    assert all(mine is not stock for mine, stock in zip(ours, restored, strict=True))
    assert [patch.read() for patch in patches] == restored
    assert len(again) == len(ours)


def test_uninstall_forgets_compiled_frames():
    def program(value):
        return value["a"] + 1

    value = TensorDict({"a": torch.ones(2)}, batch_size=[2])
    with tdcompile.install(strict=True):
        torch.compile(program, backend="eager", fullgraph=True)(value)
        assert torch._dynamo.eval_frame._debug_get_cache_entry_list(program.__code__)
    assert not torch._dynamo.eval_frame._debug_get_cache_entry_list(program.__code__)
