"""Tensorclasses: the same class statements and programs on two packages."""

from __future__ import annotations

import dataclasses
import pickle
import types
import warnings
from typing import Any

import numpy as np
import pytest
import tensordict as oracle
import torch
from tensordict import NonTensorData as OracleNonTensorData

import tdcompile.tensordict as ours

PACKAGES = (ours, oracle)
_KINDS_OF_ERRORS = (KeyError, IndexError, AttributeError, TypeError, ValueError, RuntimeError)


def classes(package):
    """The classes of this file, made of `package`."""
    base, tensorclass = package.TensorClass, package.tensorclass

    @tensorclass
    class Plain:
        x: torch.Tensor
        s: str
        y: Any = None

        def double(self):
            return self.x * 2

        @property
        def total(self):
            return self.x.sum()

    class Sub(base):
        x: torch.Tensor
        s: str = "none"
        y: torch.Tensor = None

    class Child(Sub):
        z: torch.Tensor = None

    class Node(base):
        x: torch.Tensor
        left: Node = None

    class Cast(base["autocast"]):
        # The oracle does not find `package`, which is local to this function, in a string.
        __annotations__ = {
            "x": torch.Tensor,
            "s": str,
            "i": int,
            "f": float,
            "td": package.TensorDict,
        }
        s = "none"
        i = 3
        f = 1.0
        td = None

    class NoCast(base, nocast=True):
        x: Any
        s: Any = None

    class Frozen(base["frozen"]):
        x: torch.Tensor
        s: str = "none"

    class Only(base["tensor_only"]):
        x: torch.Tensor
        y: torch.Tensor | None = None

    class Init(base):
        x: torch.Tensor
        k: dataclasses.InitVar[int] = 1
        y: torch.Tensor = None
        w: torch.Tensor = dataclasses.field(default_factory=lambda: torch.ones(3))

    class Post(base, skip_post_init_on_rebuild=True):
        x: torch.Tensor

        def __post_init__(self):
            self.x = self.x + 1

    class Rebuilt(base):
        x: torch.Tensor
        note: Any = None

        def __post_init__(self):
            self.x = self.x.abs()

    class Custom(base):
        x: torch.Tensor
        y: torch.Tensor = None

        def __init__(self, length):
            self.x = torch.arange(length)

    class Shadow(base["shadow"]):
        device: Any
        batch_size: Any = None

    found = {name: value for name, value in locals().items() if isinstance(value, type)}
    return types.SimpleNamespace(**found, TensorDict=package.TensorDict, package=package)


NAMES = {package: classes(package) for package in PACKAGES}


def plain(value: Any) -> Any:
    """What a program gave, as data that is comparable across the packages."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), value.tolist())
    if isinstance(value, (ours.NonTensorData, OracleNonTensorData)):
        return ("non-tensor", plain(value.data))
    if isinstance(value, np.ndarray):
        return ("numpy", value.tolist())
    if isinstance(value, (tuple, list)) and type(value) is not torch.Size:
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if oracle.is_tensor_collection(value) or ours.is_tensor_collection(value):
        if isinstance(value, type):
            return value.__name__
        entries = {key: plain(item) for key, item in value.items()}
        names = list(value.names) if type(value).__name__ != "Shadow" else None
        return (type(value).__name__, entries, names)
    if isinstance(value, (str, int, float, bool, type(None), torch.Size, torch.device, bytes)):
        return value
    return type(value).__name__


def outcome(program: str, package: Any) -> Any:
    warnings.simplefilter("ignore")
    scope = {**vars(NAMES[package]), "torch": torch, "np": np}
    scope |= {"copy": __import__("copy"), "pickle": pickle, "dataclasses": dataclasses}
    scope["p"] = scope["Plain"](torch.arange(6.0).reshape(3, 2), "a", batch_size=[3])
    scope["q"] = scope["Plain"](torch.ones(3, 2), "b", torch.zeros(3), batch_size=[3])
    scope["td"] = scope["TensorDict"]({"x": torch.ones(3, 2), "s": "c"}, batch_size=[3])
    scope["n"] = scope["Node"](torch.zeros(3), scope["Node"](torch.ones(3)), batch_size=[3])
    *statements, result = program.split("; ")
    try:
        for statement in statements:
            exec(statement, scope)
        return plain(eval(result, scope))
    except Exception as error:  # what is raised is the outcome
        return error


SAME = [
    # construction
    "Plain(torch.ones(3), 'a')",
    "Plain(torch.ones(3), s='a', batch_size=[3])",
    "Plain(torch.ones(3), 'a', 4)",
    "Plain(1, 2.5, True)",
    "Plain([1, 2], (1, 2), {'a': 1})",
    "Plain([1, 2], (1, 2), {'a': 1}).y",
    "Plain(np.ones(2), np.int64(3), 1j).s",
    "Plain(np.ones(2), np.int64(3), 1j).x",
    "Plain(None, None)",
    "Plain(torch.ones(3, 2), 'a', batch_size=3, device='cpu', names=['t'])",
    "Plain(torch.ones(3), 'a', batch_size=[3], device='cpu').device",
    "Plain(torch.ones(3))",
    "Plain(torch.ones(3), 'a', 1, 2)",
    "Plain(torch.ones(3), 'a', batch_size=[4])",
    "Plain(td, 'a', batch_size=[3])",
    "Plain(TensorDict(a=torch.ones(3)), 'a', batch_size=[3]).x.batch_size",
    "Sub(torch.ones(3))",
    "Child(torch.ones(3), z=torch.zeros(3), batch_size=[3])",
    "Child(torch.ones(3), 's', None, torch.zeros(3), batch_size=[3])",
    "Node(1, Node(2, Node(3)))",
    "isinstance(Child(1), Sub), isinstance(Sub(1), Child)",
    "Init(torch.ones(3), 4, y=torch.ones(3), batch_size=[3])",
    "Init(torch.ones(3), 4, torch.ones(3), torch.ones(3), torch.ones(3))",
    "Init(torch.ones(3)).w",
    "Post(torch.zeros(3)).x",
    "Post(torch.zeros(3), batch_size=[3])[0].x",
    "Post.from_tensordict(TensorDict(x=torch.zeros(3)))",
    "Rebuilt(torch.full((3,), -1.0), batch_size=[3])",
    "(Rebuilt(torch.full((3,), -1.0), batch_size=[3]) * -1).x",
    "Rebuilt(torch.full((3,), -1.0), batch_size=[3]).neg()[0]",
    "Custom(3)",
    "Custom(3, batch_size=[3])",
    "Custom(3, batch_size=[3])[0]",
    "Custom()",
    "dataclasses.is_dataclass(p), [f.name for f in dataclasses.fields(p)]",
    "[f.name for f in p.fields()]",
    "sorted(Child.__expected_keys__)",
    # attributes
    "p.x",
    "p.s",
    "p.y",
    "p.double()",
    "p.total",
    "p.nope",
    "p.x = torch.zeros(3); p",
    "p.x = torch.zeros(2); p",
    "p.x = 1; p",
    "p.x = 'text'; p.x",
    "p.x = [1, 2, 3]; p.x",
    "p.x = {'a': 1}; p.x",
    "p.s = torch.zeros(3); p",
    "p.y = q; p.y.s",
    "p.y = None; p",
    "p.x = None; p",
    "p.x = None; p.x = torch.ones(3); list(p.keys())",
    "p.q = 1; p",
    "p.lock_(); p.x = torch.zeros(3); p",
    "p.lock_(); del p.x; p",
    "p.lock_(); p.is_locked",
    "del p.x; p.x",
    "del p.y; p.y",
    "p.batch_size = []; p",
    "p.device = 'cpu'; p",
    "p.names = ['t']; p",
    # keys
    "p.get('x')",
    "p.get('s')",
    "p.get('y')",
    "p.get('y', 3)",
    "p.get('nope')",
    "p.get('nope', 3)",
    "n.get(('left', 'x'))",
    "n.get(('left', 'nope'))",
    "n.get(('left', 'left'))",
    "p.get(('x', 'nope'), 3)",
    "p['x']",
    "p['x', 's']",
    "n['left', 'x']",
    "p['x'] = torch.ones(3); p",
    "list(p.keys())",
    "list(p.items())",
    "list(n.keys(True))",
    "sorted(n.keys(True, True))",
    "len(list(n.values(True, True)))",
    "'x' in p.keys(), 'y' in p.keys()",
    "p.set('x', torch.zeros(3))",
    "p.set('y', None)",
    "p.set('y', {'a': 1}).y",
    "p.set('nope', torch.zeros(3))",
    "n.set(('left', 'x'), torch.zeros(3)).left.x",
    "n.set(('left', 'nope'), torch.zeros(3))",
    "p.set('x', torch.zeros(3, 2), inplace=True)",
    "p.set_('x', torch.zeros(3, 2))",
    "p.update({'x': torch.zeros(3)})",
    "p.update({'s': 'z'}).s",
    "p.update(q).s",
    "p.update({'nope': torch.ones(3)})",
    "p.update(x=torch.zeros(3))",
    "p.update()",
    "n.update({'left': {'x': torch.zeros(3)}})",
    "p.update({'y': {'a': torch.ones(3)}}).y",
    "p.update_({'x': torch.zeros(3, 2)})",
    "p.replace(x=torch.zeros(3))",
    "p.replace(q).s",
    "p.pop('x')",
    "p.pop('x'); p",
    "p.pop('nope')",
    "p.pop('nope', 3)",
    "p.del_('x')",
    "p.setdefault('y', torch.ones(3))",
    "p.rename_key_('x', 's')",
    "p.is_non_tensor('s'), p.is_non_tensor('x')",
    "p.get_non_tensor('s')",
    "p.set_non_tensor('y', 3).y",
    "p.select('x')",
    "p.select('x').s",
    "p.exclude('x')",
    "n.select(('left', 'x'))",
    "p.select('x', as_tensordict=True)",
    "p.empty()",
    "p.empty(recurse=True)",
    "p.clear()",
    "p.is_empty()",
    "p.sorted_keys",
    "n.flatten_keys('.')",
    "p.flatten_keys('.')",
    # plain forms
    "p.to_dict()",
    "p.to_dict(retain_none=False)",
    "n.to_dict()",
    "p.to_tensordict()",
    "n.to_tensordict()",
    "p.to_tensordict(retain_none=False)",
    "TensorDict(a=n).to_tensordict()",
    "Plain.from_dict(q.to_dict(), auto_batch_size=True)",
    "Node.from_dict({'x': torch.ones(3), 'left': {'x': torch.ones(3)}}, batch_size=[3])",
    "Plain.from_dict({'x': torch.ones(3), 'nope': 1})",
    "Plain.from_dict({'x': torch.ones(3)}).s",
    "Plain.from_any({'x': torch.ones(3), 's': 'a'})",
    "Plain.fromkeys(['x', 's'], 0)",
    "Plain.from_tensordict(td)",
    "Plain.from_tensordict(td).x is td['x']",
    "Plain.from_tensordict(td.select('x')).s",
    "Plain.from_tensordict(TensorDict(nope=1))",
    "Plain.from_tensordict(td.lock_()).is_locked",
    # operations
    "p + 1",
    "1 - p",
    "(p + q).s",
    "p + td",
    "p * torch.ones(())",
    "p += 1; p",
    "p.add_(1); p",
    "p == p",
    "(p == q).s",
    "(p != q).x",
    "p < 1",
    "p.exp()",
    "p.sum()",
    "p.sum(0)",
    "p.all(), p.any()",
    "p.all(0)",
    "p[0]",
    "p[0].s",
    "p[0].y",
    "p[1:]",
    "p[[0, 2]]",
    "p[torch.tensor([True, False, True])]",
    "p[None]",
    "p[...]",
    "p[:2] = 0; p.x",
    "p[1] = TensorDict(x=torch.ones(2)); p.x",
    "p[0] = n[0]; p",
    "len(p), p.numel(), p.ndim, p.shape",
    "[row.x for row in p]",
    "p.unbind(0)",
    "p.split(2)",
    "p.reshape(3, 1)",
    "p.view(3, 1)",
    "p.permute(0)",
    "p.flatten()",
    "p.transpose(0, 0)",
    "torch.stack([q, q]).x",
    "torch.stack([q, q]).y",
    "torch.cat([p, p])",
    "torch.stack([p, n])",
    "torch.zeros_like(p)",
    "torch.clone(p)",
    "torch.squeeze(p.unsqueeze(0))",
    "torch.gather(p, 0, torch.tensor([0]))",
    "p.gather(0, torch.tensor([0, 1]))",
    "p.apply(lambda x: x + 1)",
    "p.named_apply(lambda name, x: x + 1)",
    "p.apply(lambda x: x + 1, batch_size=[])",
    "p.to(torch.float64)",
    "p.to('cpu').device",
    "p.double() if False else p.bool()",
    "p.detach()",
    "p.clone()",
    "p.clone(False).x is p.x",
    "p.copy() is p",
    "copy.copy(p).x is p.x",
    "copy.deepcopy(p).x is p.x",
    "p.masked_fill(torch.tensor([True, False, True]), 0)",
    "p.repeat(2)",
    "p.requires_grad, p.dtype, p.depth, p.bytes()",
    "n.left.batch_size",
    "n[0].left",
    "type(n[0].left) is type(n)",
    "TensorDict({'p': p}, batch_size=[3])[0]['p']",
    "TensorDict({'p': p}, batch_size=[3])['p', 's']",
    "TensorDict({'p': p}, batch_size=[3])['p'] is p",
    "TensorDict({'p': p}, batch_size=[3]).to_dict()",
    "bool(p)",
    "hash(p)",
    # options
    "Cast(1, 2, 3.7, 4)",
    "Cast(1, 2, 3.7, 4).i",
    "Cast(x='text')",
    "Cast(x=[1, 2], td={'a': torch.ones(3)}).td",
    "Cast(1).s",
    "c = Cast(1); c.i = torch.tensor(7); c.i",
    "c = Cast(1); c.f = 2; c.f",
    "NoCast(1).x",
    "NoCast(np.ones(2)).x",
    "NoCast(True, 2.5)",
    "NoCast(torch.ones(2), torch.zeros(2)).s",
    "NoCast([1, 2]).x",
    "NoCast._nocast, NoCast._autocast, Cast._autocast, Frozen._frozen",
    "Frozen(torch.ones(3)).is_locked",
    "f = Frozen(torch.ones(3)); f.x = 3; f",
    "f = Frozen(torch.ones(3)); f.clone().x = 3; f",
    "f = Frozen(torch.ones(3)); f.clone().is_locked",
    "f = Frozen(torch.ones(3)); del f.x; f",
    "f = Frozen(torch.ones(3)); hash(f) == hash((f.x, 'none'))",
    "Only(1, [1, 2])",
    "Only(1).y",
    "Only({'a': 1}).x",
    "Only((1, 2)).x",
    "Shadow(3).device",
    "Shadow(3, 4).batch_size",
    "Shadow(torch.ones(3)).device",
]


@pytest.mark.parametrize("program", SAME)
def test_program_gives_what_the_oracle_gives(program):
    found, expected = outcome(program, ours), outcome(program, oracle)
    if isinstance(expected, Exception):
        kind = next(kind for kind in _KINDS_OF_ERRORS if isinstance(expected, kind))
        assert isinstance(found, kind), (found, expected)
    else:
        assert found == expected
