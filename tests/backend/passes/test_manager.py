from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from tdcompile._compat.inductor import POST_GRAD_PASS, compile_with_inductor, custom_pass
from tdcompile.backend.passes import PASS_NAMES
from tdcompile.backend.passes.base import GraphPass
from tdcompile.backend.passes.manager import PassManager, load_pass


class Recording(GraphPass):
    name = "recording"
    stage = "post_grad"

    def __init__(self, version="1"):
        self.version = version
        self.graphs = 0

    def __call__(self, graph):
        assert all(
            str(node.target).startswith("aten")
            for node in graph.nodes
            if node.op == "call_function"
        )
        self.graphs += 1
        return 0

    def uuid(self):
        return f"{super().uuid()}:{self.version}"


@pytest.mark.parametrize("name", PASS_NAMES)
def test_every_named_pass_is_a_file_and_says_when_it_runs(name):
    item = load_pass(name)
    assert item.name == name
    assert item.stage in ("graph", "post_grad")
    assert "Sound when" in type(item).__doc__
    assert item.uuid().startswith(f"{name}:")


def test_uuid_covers_order_number_and_version():
    one, two = Recording("1"), Recording("2")
    sets = [[], [one], [two], [one, two], [two, one], [one, one]]
    assert len({PassManager(items).uuid("post_grad") for items in sets}) == len(sets)
    assert PassManager([Recording("1")]).uuid("post_grad") == PassManager([one]).uuid("post_grad")


def test_uuid_is_the_same_in_another_process():
    code = (
        "from tdcompile.backend.passes.manager import PassManager\n"
        f"print(PassManager({list(PASS_NAMES)!r}).uuid('graph'))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == PassManager(PASS_NAMES).uuid("graph")


def test_inductor_options_add_ours_after_the_callers():
    def theirs(graph):
        return None

    given = {POST_GRAD_PASS: theirs, "epilogue_fusion": False}
    before = dict(given)
    merged = PassManager([Recording()]).inductor_options(given)
    assert given == before
    assert merged["epilogue_fusion"] is False
    assert merged[POST_GRAD_PASS][0] is theirs
    assert len(merged[POST_GRAD_PASS]) == 2
    assert PassManager([]).inductor_options(given) == given


def test_custom_passes_compare_by_uuid():
    assert custom_pass(print, "a") == custom_pass(repr, "a")
    assert custom_pass(print, "a") != custom_pass(print, "b")
    assert len({custom_pass(print, "a"), custom_pass(print, "a")}) == 1


def compile_recording(item):
    torch._dynamo.reset()
    counters.clear()
    manager = PassManager([item])

    def backend(gm, inputs):
        return compile_with_inductor(gm, inputs, mode=None, options=manager.inductor_options({}))

    x = torch.ones(3, requires_grad=True)
    torch.compile(lambda x: (x.sin() * 2).sum(), backend=backend)(x).backward()
    return {key: counters["inductor"][f"fxgraph_cache_{key}"] for key in ("miss", "hit", "bypass")}


def test_post_grad_pass_runs_forward_and_backward_and_keeps_the_cache():
    with fresh_cache(), torch._functorch.config.patch(enable_autograd_cache=False):
        first = Recording("1")
        assert compile_recording(first) == {"miss": 2, "hit": 0, "bypass": 0}
        assert first.graphs == 2
        again = Recording("1")
        assert compile_recording(again) == {"miss": 0, "hit": 2, "bypass": 0}
        # Another version of the pass is another key.
        assert compile_recording(Recording("2")) == {"miss": 2, "hit": 0, "bypass": 0}
