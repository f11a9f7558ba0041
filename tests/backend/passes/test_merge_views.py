from __future__ import annotations

import pytest
import torch

from tdcompile.backend.passes.merge_views import PASS


class Recorder:
    """Backend that runs the pass on Dynamo's graph and then the graph itself."""

    def __init__(self):
        self.merged = 0

    def __call__(self, gm, inputs):
        before = len(gm.graph.nodes)
        self.merged += PASS(gm.graph)
        gm.graph.lint()
        gm.recompile()
        assert before - len(gm.graph.nodes) == self.merged
        return gm


def run(fn, *args):
    torch._dynamo.reset()
    backend = Recorder()
    found = torch.compile(fn, backend=backend, fullgraph=True)(*args)
    return backend.merged, found


def align(x, t):
    return x * t.reshape(-1, 1) + t.reshape(-1, 1) * t.reshape((-1, 1))


def chain(x, t):
    return x * t.unsqueeze(-1).expand(3, 4) + t.unsqueeze(-1).expand(3, 4)


def function_form(x, t):
    return x * torch.reshape(t, (-1, 1)) - torch.reshape(t, (-1, 1))


def different(x, t):
    return x * t.reshape(-1, 1) + t.reshape(1, -1)[:, :1]


def true_is_not_one(x, t):
    return x.sum(1, True).squeeze(1) + x.sum(1, True).squeeze(-1)


def no_grad_region(x, t):
    with torch.no_grad():
        a = t.reshape(-1, 1) * 1
    return x * t.reshape(-1, 1) + a


def in_place(x, t):
    a = x.t().reshape(-1)
    a.add_(1)
    return a + x.t().reshape(-1)


def in_place_operator(x, t):
    a = x.t().reshape(-1)
    a += 1
    return a + x.t().reshape(-1)


def set_item(x, t):
    a = x.t().reshape(-1)
    a[0] = 5
    return a + x.t().reshape(-1)


def out_argument(x, t):
    a = x.t().reshape(-1)
    torch.add(a, 1, out=a)
    return a + x.t().reshape(-1)


def higher_order(x, t):
    return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (x * t.reshape(-1, 1),)) + t.reshape(-1, 1)  # fmt: skip  # noqa: E501


CASES = {
    align: 1,
    chain: 2,
    function_form: 1,
    different: 0,
    true_is_not_one: 0,
    no_grad_region: 0,
    in_place: 0,
    in_place_operator: 0,
    set_item: 0,
    out_argument: 0,
    higher_order: 0,
}


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_merge_views_merges_what_is_equal_and_keeps_the_value(fn):
    def inputs():
        return torch.arange(12.0).reshape(3, 4).clone(), torch.arange(1.0, 4.0)

    merged, found = run(fn, *inputs())
    assert merged == CASES[fn]
    torch.testing.assert_close(found, fn(*inputs()))


def test_merge_views_keeps_two_outputs_apart():
    merged, (one, two) = run(lambda t: (t.reshape(-1, 1), t.reshape(-1, 1)), torch.ones(3))
    assert merged == 0
    assert one is not two


def test_merge_views_gradients_are_eagers():
    x, t = torch.ones(3, 4), torch.arange(1.0, 4.0, requires_grad=True)
    merged, found = run(align, x, t)
    (grad,) = torch.autograd.grad(found.sum(), t)
    (expected,) = torch.autograd.grad(align(x, t).sum(), t)
    assert merged == 1
    torch.testing.assert_close(grad, expected)


def test_merge_views_dynamic_sizes_merge():
    torch._dynamo.reset()
    backend = Recorder()
    compiled = torch.compile(
        lambda x, t: x * t.expand(x.shape[0]) + t.expand(x.shape[0]), backend=backend, dynamic=True
    )
    assert compiled(torch.ones(3), torch.ones(1)).tolist() == [2, 2, 2]
    assert backend.merged == 1
