"""Calls that have to do with memory in compiled code: one break, or an error that names them."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend

import tdcompile as ours
from tdcompile import TensorDict
from tdcompile.tensordict.storage.flat import flat_layout_of

sys.path.insert(0, os.path.dirname(__file__))
from samples import same

PROGRAMS = {
    "memmap": lambda td, path: (td + 1).memmap()["a"] * 2,
    "memmap_": lambda td, path: (td + 1).memmap_(path)["a"] * 2,
    "memmap_like": lambda td, path: (td + 1).memmap_like()["a"] * 2,
    "save": lambda td, path: (td + 1).save(path)["a"] * 2,
    "share_memory_": lambda td, path: (td + 1).share_memory_()["a"] * 2,
    "data_ptr": lambda td, path: ((td + 1).data_ptr()["a"] > 0) * 2,
    "is_memmap": lambda td, path: (td["a"] + 1) * (2 if td.is_memmap() else 3),
    "is_shared": lambda td, path: (td["a"] + 1) * (2 if td.is_shared() else 3),
    "consolidate": lambda td, path: ((td + 1).consolidate() * 2)["a"],
    "is_consolidated": lambda td, path: (td["a"] + 1) * (2 if td.is_consolidated() else 3),
}


def make():
    return TensorDict({"a": torch.ones(3), "n": {"b": torch.zeros(3)}}, [3])


INPUTS = {
    "plain": make,
    "mapped": lambda: make().memmap_(),
    "one block": lambda: make().consolidate(),
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_call_breaks_the_graph_once(name, kind, tmp_path):
    program, argument = PROGRAMS[name], INPUTS[kind]
    expected = program(argument(), tmp_path / "eager")
    counter = CompileCounterWithBackend("eager")
    with ours.install():
        result = torch.compile(program, backend=counter)(argument(), tmp_path / "compiled")
    assert torch.equal(torch.as_tensor(result), torch.as_tensor(expected))
    assert counter.frame_count == 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_call_in_a_full_graph_names_itself_and_the_way_out(name, tmp_path):
    with ours.install(), pytest.raises(Unsupported) as caught:
        torch.compile(PROGRAMS[name], backend="eager", fullgraph=True)(make(), tmp_path)
    message = str(caught.value)
    assert f"td.{name}" in message
    assert "outside the compiled function" in message


@pytest.mark.parametrize("method", ["load_memmap", "load"])
def test_load_breaks_the_graph_and_names_itself(method, tmp_path):
    make().memmap(tmp_path)

    def program(td, path):
        return (getattr(TensorDict, method)(path) + td)["a"] * 2

    with ours.install():
        result = torch.compile(program, backend="eager")(make(), tmp_path)
        assert torch.equal(result, torch.full((3,), 4.0))
        torch._dynamo.reset()
        with pytest.raises(Unsupported, match=rf"TensorDict\.{method}\(\)"):
            torch.compile(program, backend="eager", fullgraph=True)(make(), tmp_path)


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize(
    "program",
    [
        lambda td: td.clone(),
        lambda td: td * 2 + 1,
        lambda td: td["n", "b"] + td["a"],
        lambda td: td.unlock_().update({"z": td["a"] + 1}),
        lambda td: td.apply(lambda x: x + 1),
        lambda td: td[0],
        lambda td: td.update_({"a": td["a"] + 1}),
        lambda td: td["a"].view(1, 3).t() + td["a"].reshape(3, 1) + td["a"].unbind(0)[0],
        lambda td: td["a"].split(1)[0] + td["a"][1] + sum(td["n", "b"]) + td["a"].detach()[0],
        lambda td: td.unsqueeze(0).reshape(3),
    ],
    ids=["clone", "sum", "read", "unlock", "apply", "index", "update_", "views", "parts", "shapes"],
)
def test_program_over_mapped_and_consolidated_tensordicts_compiles_whole(kind, program):
    expected, eager_input = program(argument := INPUTS[kind]()), argument
    compiled_input = INPUTS[kind]()
    with ours.install():
        result = torch.compile(program, backend="eager", fullgraph=True)(compiled_input)
    if isinstance(expected, torch.Tensor):
        assert torch.equal(result, expected)
    else:
        same(result, expected)
    same(compiled_input, eager_input)
    assert compiled_input.is_memmap() == eager_input.is_memmap()
    assert compiled_input.is_consolidated() == eager_input.is_consolidated()


def test_unlock_and_lock_in_a_trace_end_what_was_known_of_the_memory():
    def program(td):
        td.unlock_()
        td["a"] = td["a"] + 1
        return td.lock_()

    for kind in ("mapped", "one block"):
        td = INPUTS[kind]()
        with ours.install():
            torch.compile(program, backend="eager", fullgraph=True)(td)
        assert td.is_locked
        assert not td.is_memmap()
        assert not td.is_consolidated()
        assert flat_layout_of(td) is None
