"""Modules and ``TensorDictParams`` in compiled code: whole graphs, modules as eager leaves them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import tdcompile
from tdcompile import TensorDict, TensorDictParams
from tdcompile.tensordict import modules
from tdcompile.variables.followed import build_is_followed


class Net(nn.Module):
    """Two layers, a shared one and a buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(2, 2)
        self.rest = nn.Sequential(nn.Tanh(), nn.Linear(2, 2))
        self.again = self.first
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x):
        return self.again(self.rest(self.first(x))) * self.scale


def tensors_of(net):
    params = {key: id(value) for key, value in net.named_parameters(remove_duplicate=False)}
    return params | {key: id(value) for key, value in net.named_buffers()}


def block(net, td, x):
    with td.to_module(net):
        return net(x)


def swap(net, td, x):
    old = td.to_module(net)
    y = net(x)
    old.to_module(net)
    return y


def block_that_raises(net, td, x):
    y = x
    try:
        with td.to_module(net):
            y = net(x)
            raise ValueError
    except ValueError:
        return y + net(x)


def nested_blocks(net, td, x):
    with td.to_module(net):
        with (td.data * 2).to_module(net, preserve_module_state=False):
            y = net(x)
        return y + net(x)


def stays(net, td, x):
    td.to_module(net)
    return net(x)


def in_place(net, td, x):
    with td.to_module(net, inplace=True):
        y = net(x)
    return y + net(x)


def not_preserved(net, td, x):
    with td.to_module(net, preserve_module_state=False):
        return net(x)


def read_back(net, td, x):
    with td.to_module(net):
        return TensorDict.from_module(net)["first", "weight"] + x


def loss(net, td, x):
    with td.to_module(net):
        return net(x).square().sum()


PROGRAMS = {
    "block": block,
    "swap": swap,
    "block_that_raises": block_that_raises,
    "nested_blocks": nested_blocks,
    "stays": stays,
    "in_place": in_place,
    "not_preserved": not_preserved,
    "read_back": read_back,
    "loss": loss,
}


def from_module(net):
    return TensorDict.from_module(net).apply(lambda leaf: leaf.detach() + 1)


KINDS = {
    "plain": from_module,
    "requires_grad": lambda net: from_module(net).requires_grad_(),
    "parameters": lambda net: TensorDict.from_module(copy.deepcopy(net)),
    "params": lambda net: TensorDictParams(from_module(net)),
    "locked": lambda net: from_module(net).lock_(),
    "own": TensorDict.from_module,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_to_module_compiled_matches_eager(program, kind):
    x = torch.arange(4.0).reshape(2, 2)
    net, traced = Net(), Net()
    eager = program(net, kind(net), x)
    before = tensors_of(traced)
    backend = CompileCounterWithBackend("eager")
    with tdcompile.install():
        result = torch.compile(program, fullgraph=True, backend=backend)(traced, kind(traced), x)
    assert torch.equal(result, eager)
    assert result.requires_grad == eager.requires_grad
    unchanged = program is not stays or kind == TensorDict.from_module
    assert (tensors_of(traced) == before) == unchanged
    for one, other in zip(net.parameters(), traced.parameters(), strict=True):
        assert torch.equal(one, other)
        assert (type(one), one.requires_grad) == (type(other), other.requires_grad)
    assert backend.frame_count == 1


def test_to_module_compiled_does_not_recompile_for_other_values():
    net, x = Net(), torch.ones(1, 2)
    tds = [from_module(net) * i for i in range(4)]
    backend = CompileCounterWithBackend("eager")
    with tdcompile.install():
        compiled = torch.compile(block, fullgraph=True, backend=backend)
        for td in tds:
            assert torch.equal(compiled(net, td, x), block(net, td, x))
    assert backend.frame_count == 1


@pytest.mark.parametrize("kind", [lambda p: p, lambda p: p.data, TensorDictParams])
def test_ensemble_compiled_matches_eager(kind):
    nets = [nn.Linear(2, 2) for _ in range(3)]
    params = kind(TensorDict.from_modules(*nets, lock=False))
    empty, x = nn.Linear(2, 2, device="meta"), torch.ones(2)

    def call(params, x):
        with params.to_module(empty):
            return empty(x)

    def program(params, x):
        return torch.vmap(call, (0, None))(params, x)

    with tdcompile.install():
        result = torch.compile(program, fullgraph=True, backend="eager")(params, x)
    assert torch.equal(result, program(params, x))
    assert empty.weight.is_meta


def read(params):
    return params["a"] + params["n"]["b"] + params.get(("n", "b")) + params.a


def arithmetic(params):
    return (params + 1) * params.data


def mapped(params):
    return params.apply(lambda leaf: leaf * 2)


def write_data(params):
    params.data.zero_()
    return params["a"] + 1


def update_in_place(params):
    params.update_({"a": torch.full((3,), 4.0)})
    return params["a"] + 1


PARAMS_PROGRAMS = {
    "read": read,
    "arithmetic": arithmetic,
    "mapped": mapped,
    "write_data": write_data,
    "update_in_place": update_in_place,
}


def make_params():
    return TensorDictParams(TensorDict({"a": torch.arange(3.0), "n": {"b": torch.ones(3)}}, [3]))


@pytest.mark.parametrize("program", PARAMS_PROGRAMS.values(), ids=PARAMS_PROGRAMS)
@pytest.mark.parametrize("held", [False, True], ids=["argument", "submodule"])
def test_params_compiled_matches_eager(program, held):
    def whole(holder):
        return program(holder.params if held else holder)

    def run(function):
        params = make_params()
        holder = params
        if held:
            holder = nn.Module()
            holder.params = params
        return function(holder), params

    eager, expected = run(whole)
    with tdcompile.install():
        result, params = run(torch.compile(whole, fullgraph=True, backend="eager"))
    assert type(result) is type(eager)
    same = result == eager
    assert same.all()
    assert (params == expected).all()


def test_params_made_in_a_trace_registers_parameters():
    def program(x):
        return TensorDictParams(TensorDict({"a": x}))

    with tdcompile.install():
        params = torch.compile(program, fullgraph=True, backend="eager")(torch.ones(2))
    assert [name for name, _ in params.named_parameters()] == ["a"]


def test_params_in_place_and_backward_through_inductor():
    params = make_params()

    def step(params, x):
        return (params["a"] * x).sum() + params["n", "b"].sum()

    with tdcompile.install():
        torch.compile(step, fullgraph=True, backend="aot_eager")(params, torch.ones(3)).backward()
    assert params.grad["a"].tolist() == [1.0] * 3


@pytest.mark.parametrize("strict", [False, True])
def test_params_exported_are_parameters_and_stay_as_they_are(strict):
    class Ensemble(nn.Module):
        def __init__(self):
            super().__init__()
            self.params = make_params()

        def forward(self, x):
            return torch.stack([p["n", "b"] * x + p["a"] for p in self.params.unbind(0)])

    module, x = Ensemble(), torch.arange(2.0)
    td, before = module.params._param_td, list(module.params.values(True, True))
    with tdcompile.install():
        exported = torch.export.export(module, (x,), strict=strict)
    assert torch.equal(exported.module()(x), module(x))
    assert sorted(exported.state_dict) == ["params.a", "params.n.b"]
    assert module.params._param_td is td
    now = module.params.values(True, True)
    assert all(one is other for one, other in zip(now, before, strict=True))


def test_is_followed_is_served_while_installed_only():
    from tdcompile._compat import dynamo as seam

    with tdcompile.install():
        assert seam.id_table()[id(modules.is_followed)] is build_is_followed
    assert id(modules.is_followed) not in seam.id_table()
