"""Modules as tensordicts and back: ``from_module``, ``from_modules``, ``to_module``."""

from __future__ import annotations

import copy

import pytest
import tensordict as oracle
import torch
from torch import nn

import tdcompile as ours
from tdcompile.errors import KeyPathError, TensorDictShapeError


class Net(nn.Module):
    """Nested, shared and tied parts, buffers of both sorts, and names without a tensor."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.rest = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.BatchNorm1d(3))
        self.again = self.first
        self.tied = self.first.weight
        self.register_buffer("scale", torch.ones(2), persistent=False)
        self.register_buffer("nothing", None)
        self.register_parameter("no_bias", None)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.rest(self.first(x) * self.scale)


def tree(td):
    """Keys in order, kinds and values of the leaves."""
    return [
        (key, isinstance(value, nn.Parameter), value.requires_grad, value.shape, value.dtype)
        for key, value in td.items(True, True)
    ]


FROM_MODULE = {
    "plain": {},
    "as_module": {"as_module": True},
    "lock": {"lock": True},
    "state_dict": {"use_state_dict": True},
    "all": {"as_module": True, "lock": True, "use_state_dict": True},
    "with_empty": {"filter_empty": False},
}


@pytest.mark.parametrize("options", FROM_MODULE.values(), ids=FROM_MODULE)
def test_from_module_matches_oracle(options):
    net = Net()
    td, other = (p.TensorDict.from_module(net, **options) for p in (ours, oracle))
    assert tree(td) == tree(other)
    assert list(td.keys()) == list(other.keys())
    assert (td.is_locked, td.batch_size, td.device) == (other.is_locked, (), None)
    assert isinstance(td, ours.TensorDictParams) == options.get("as_module", False)
    assert td["first", "weight"].data_ptr() == net.first.weight.data_ptr()
    assert type(td["again"]).__name__ == type(other["again"]).__name__


def test_from_module_shares_what_the_module_shares():
    td = ours.TensorDict.from_module(Net())
    assert td["again"] is td["first"]
    assert td["tied"] is td["first", "weight"]


def test_from_module_of_the_package_locks():
    assert ours.from_module(nn.Linear(1, 1)).is_locked
    assert oracle.from_module(nn.Linear(1, 1)).is_locked


def test_from_module_holds_params_of_the_module_as_they_are():
    net = nn.ModuleDict({"p": ours.TensorDictParams({"a": torch.ones(2)})})
    td = ours.TensorDict.from_module(net)
    assert td["p"] is net["p"]


def test_from_module_runs_state_dict_hooks():
    net = nn.Linear(2, 2)
    net._register_state_dict_hook(lambda module, state, prefix, meta: state.update(extra=1))
    assert ours.TensorDict.from_module(net, use_state_dict=True)["extra"] == 1


def shared_net():
    first = nn.Linear(2, 2)
    return [nn.Sequential(first, nn.BatchNorm1d(2)) for _ in range(3)]


FROM_MODULES = {
    "plain": {},
    "as_module": {"as_module": True},
    "not_locked": {"lock": False},
    "state_dict": {"use_state_dict": True},
    "expand_identical": {"expand_identical": True},
    "expand_as_module": {"expand_identical": True, "as_module": True},
}


@pytest.mark.parametrize("options", FROM_MODULES.values(), ids=FROM_MODULES)
def test_from_modules_matches_oracle(options):
    nets = shared_net()
    td, other = (p.TensorDict.from_modules(*nets, **options) for p in (ours, oracle))
    assert tree(td) == tree(other)
    assert (td.is_locked, td.batch_size) == (other.is_locked, other.batch_size)
    assert all((td[key] == value).all() for key, value in other.items(True, True))
    for key, value in other.items(True, True):
        assert isinstance(td[key], nn.Buffer) == isinstance(value, nn.Buffer)
        assert td[key].stride() == value.stride()


@pytest.mark.parametrize(
    ("modules", "options", "error"),
    [
        ([], {}, ValueError),
        ([nn.Linear(1, 1), nn.Linear(1, 2)], {}, RuntimeError),
        ([nn.Linear(1, 1), nn.Linear(1, 1, bias=False)], {}, RuntimeError),
        ([nn.Linear(1, 1)], {"lazy_stack": True, "as_module": True}, RuntimeError),
        ([nn.LazyLinear(1)], {}, RuntimeError),
    ],
    ids=["none", "shapes", "keys", "lazy_as_module", "uninitialised"],
)
def test_from_modules_raises_for_what_does_not_stack(modules, options, error):
    with pytest.raises(error):
        ours.from_modules(*modules, **options)


def test_from_modules_runs_an_ensemble_and_trains_it():
    nets = [nn.Linear(3, 4) for _ in range(2)]
    params = ours.TensorDict.from_modules(*nets, as_module=True)
    empty = nn.Linear(3, 4, device="meta")

    def call(params, x):
        with params.to_module(empty):
            return empty(x)

    x = torch.ones(3)
    y = torch.vmap(call, (0, None))(params, x)
    assert torch.allclose(y, torch.stack([net(x) for net in nets]))
    y.sum().backward()
    assert params["weight"].grad is not None
    assert nets[0].weight.grad is None
    assert empty.weight.is_meta


# -- to_module --------------------------------------------------------------------------------


def state(net):
    """Every tensor of a module with its kind and the object."""
    found = [("p", *pair) for pair in net.named_parameters(remove_duplicate=False)]
    return found + [("b", *pair) for pair in net.named_buffers(remove_duplicate=False)]


def same_state(one, other):
    return len(one) == len(other) and all(
        a[:2] == b[:2] and a[2] is b[2] for a, b in zip(one, other, strict=True)
    )


def zeros_of(net, **options):
    return ours.TensorDict.from_module(net, **options).data.clone().zero_()


WAYS = {
    "plain": {},
    "not_preserving": {"preserve_module_state": False},
    "inplace": {"inplace": True},
    "state_dict": {"use_state_dict": True},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_to_module_block_gives_the_module_its_tensors_back(way, fails):
    net = Net()
    before, values = state(net), [tensor.clone() for *_, tensor in state(net)]
    try:
        with zeros_of(net).to_module(net, **way):
            assert not net.first.weight.any()
            assert not net.rest[2].running_var.any()
            assert not net.scale.any()
            if fails:
                raise ValueError
    except ValueError:
        assert fails
    assert same_state(state(net), before)
    assert all(torch.equal(a, b[2]) for a, b in zip(values, before, strict=True))


def test_to_module_blocks_nest():
    net = nn.Linear(2, 2)
    one = ours.TensorDict.from_module(net).data * 0 + 1
    before = state(net)
    with one.to_module(net):
        with (one + 1).to_module(net):
            assert (net.bias == 2).all()
        assert (net.bias == 1).all()
    assert same_state(state(net), before)


def test_to_module_returns_what_was_there():
    net = Net()
    params, before = ours.TensorDict.from_module(net), state(net)
    old = zeros_of(net).to_module(net)
    assert old["again"] is old["first"]
    assert old["first", "weight"] is params["first", "weight"]
    assert not same_state(state(net), before)
    old.to_module(net)
    assert same_state(state(net), before)


def test_to_module_inplace_returns_copies_of_what_was_there():
    net = nn.Linear(2, 2)
    weight, values = net.weight, net.weight.detach().clone()
    old = zeros_of(net).to_module(net, inplace=True)
    assert net.weight is weight
    assert not weight.any()
    old.to_module(net, inplace=True)
    assert torch.equal(weight, values)


KINDS = {
    "tensor": lambda: torch.zeros(2),
    "parameter": lambda: nn.Parameter(torch.zeros(2)),
    "frozen": lambda: nn.Parameter(torch.zeros(2), requires_grad=False),
    "requires_grad": lambda: torch.zeros(2, requires_grad=True),
    "not_a_leaf": lambda: torch.zeros(2, requires_grad=True) * 1,
    "double": lambda: torch.zeros(2, dtype=torch.double),
    "other_shape": lambda: torch.zeros(5),
}


@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("slot", ["bias", "running_mean"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_to_module_leaf_of_any_kind_matches_oracle(kind, slot, trains, preserve):
    def run(package):
        net, value = nn.BatchNorm1d(2), kind()
        net.requires_grad_(trains)
        was = getattr(net, slot)
        td = package.TensorDict({slot: value})
        with td.to_module(net, preserve_module_state=preserve):
            now = getattr(net, slot)
            names = sorted(name for name, _ in net.named_parameters())
            inside = type(now), now.requires_grad, now is value, names, now.data_ptr() == (
                value.data_ptr()
            ), sorted(name for name, _ in net.named_buffers())  # fmt: skip
        if package is ours:
            assert getattr(net, slot) is was
        return inside

    assert run(ours) == run(oracle)


def test_to_module_keeps_the_order_of_parameters():
    net = nn.Linear(2, 2)
    with ours.TensorDict({"weight": torch.zeros(2, 2)}).to_module(net, preserve_module_state=False):
        assert [name for name, _ in net.named_parameters()] == ["bias"]
    assert [name for name, _ in net.named_parameters()] == ["weight", "bias"]


def test_to_module_gradients_reach_the_tensordict():
    net = nn.Linear(2, 1)
    params = ours.TensorDict.from_module(net).data.clone().requires_grad_()
    with params.to_module(net):
        net(torch.ones(2)).backward()
    assert params.grad["weight"].tolist() == [[1.0, 1.0]]
    assert net.weight.grad is None


ERRORS = {
    "unknown": (ours.TensorDict({"weight": torch.zeros(2, 2), "zz": torch.zeros(2)}), KeyPathError),
    "unknown_module": (ours.TensorDict({"zz": {"a": torch.zeros(2)}}), KeyPathError),
    "tensordict_for_tensor": (ours.TensorDict({"bias": {"a": torch.zeros(2)}}), KeyPathError),
    "text": (ours.TensorDict({"weight": torch.zeros(2, 2), "bias": "text"}), KeyPathError),
}


@pytest.mark.parametrize("inplace", [None, True])
@pytest.mark.parametrize(("td", "error"), ERRORS.values(), ids=ERRORS)
def test_to_module_that_fails_leaves_the_module_as_it_was(td, error, inplace):
    net = nn.Linear(2, 2)
    before, values = state(net), net.weight.clone()
    with pytest.raises(error):
        td.to_module(net, inplace=inplace)
    assert same_state(state(net), before)
    assert torch.equal(net.weight, values)


def test_to_module_inplace_of_another_shape_raises():
    net = nn.Linear(2, 2)
    td = ours.TensorDict({"weight": torch.zeros(2, 2), "bias": torch.zeros(1)})
    with pytest.raises(TensorDictShapeError, match="'bias'"):
        td.to_module(net, inplace=True)
    assert net.weight.any()


def test_to_module_by_state_dict_that_fails_leaves_the_module_as_it_was():
    net = nn.Linear(2, 2)
    before = state(net)
    td = ours.TensorDict({"weight": torch.zeros(2, 2), "zz": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="zz"):
        td.to_module(net, use_state_dict=True)
    assert same_state(state(net), before)


@pytest.mark.parametrize(
    "options", [{"memo": {}}, {"use_state_dict": True, "inplace": True}], ids=["memo", "inplace"]
)
def test_to_module_refuses_options_that_do_not_fit(options):
    net = nn.Linear(1, 1)
    with pytest.raises(RuntimeError):
        ours.TensorDict.from_module(net).to_module(net, **options)


def test_to_module_runs_load_hooks_of_a_state_dict():
    net = nn.Linear(2, 2)
    net.register_load_state_dict_pre_hook(
        lambda module, state, *rest: state.update({k: v * 0 + 3 for k, v in state.items()})
    )
    zeros_of(net).to_module(net, use_state_dict=True)
    assert (net.weight == 3).all()


def test_to_module_extra_state_goes_through_the_state_dict():
    class Extra(nn.Linear):
        extra = None

        def get_extra_state(self):
            return {"x": 1}

        def set_extra_state(self, value):
            self.extra = value

    net = Extra(1, 1)
    ours.TensorDict.from_module(net, use_state_dict=True).to_module(net, use_state_dict=True)
    assert net.extra == {"x": 1}


@pytest.mark.parametrize("lock", [False, True])
def test_to_module_swap_dest_takes_what_was_there(lock):
    net = Net()
    dest, weight = zeros_of(net), net.first.weight
    assert zeros_of(net).to_module(net, swap_dest=dest.lock_() if lock else dest) is dest
    assert dest["first", "weight"] is weight
    assert dest.is_locked == lock


def test_to_module_without_swap_returns_none():
    net = nn.Linear(1, 1)
    assert ours.TensorDict.from_module(net).to_module(net, return_swap=False) is None


@pytest.mark.parametrize("wrapped", [False, True], ids=["params", "module"])
def test_to_module_writes_to_params(wrapped):
    params = ours.TensorDict.from_module(Net(), as_module=True)
    module = nn.ModuleDict({"params": params}) if wrapped else params
    td = ours.TensorDict.from_module(module)
    zeros = td.apply(lambda x: x.data * 0)
    before = list(params.values(True, True))
    with zeros.to_module(module):
        assert (params == 0).all()
        assert isinstance(params["first", "weight"], nn.Parameter)
    now = list(params.values(True, True))
    assert all(a is b for a, b in zip(now, before, strict=True))


def test_to_module_block_survives_a_deep_copy_of_the_module():
    net = Net().eval()
    params, x = ours.TensorDict.from_module(net), torch.ones(1, 2)
    y = net(x)
    with params.detach().to("meta").to_module(net, preserve_module_state=False):
        skeleton = copy.deepcopy(net)
    with params.to_module(skeleton, preserve_module_state=False):
        assert torch.equal(skeleton(x), y)
    assert torch.equal(net(x), y)
