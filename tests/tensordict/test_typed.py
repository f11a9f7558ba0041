"""``TypedTensorDict``: as the oracle's, and what differs."""

from __future__ import annotations

import pickle

import pytest
import torch
from field_classes import NAMES, check
from torch.utils import _pytree as pytree

import tdcompile.tensordict as ours

Typed = NAMES[ours].Typed

SAME = [
    "t",
    "t.a",
    "t.b is t['b']",
    "t.c",
    "t.nope",
    "t.c = torch.zeros(3); list(t.keys())",
    "t.a = torch.zeros(2); t",
    "t.a = 'text'; t['a']",
    "del t.a; t",
    "t['x'] = torch.zeros(3); t",
    "t.set('x', torch.zeros(3))['x']",
    "t.update({'x': torch.zeros(3)})",
    "t.pop('a'); t.a",
    "t.lock_(); t.a = torch.zeros(3); t",
    "Typed(a=1)",
    "Typed(a=1, b=2, x=3)",
    "Typed({'a': 1, 'b': 2})",
    "Typed({'a': 1})",
    "Typed(1, 2)",
    "Typed(a=1, b=2, batch_size=[3])",
    "Typed(a=torch.ones(3), b=torch.ones(3), batch_size=[3], device='cpu', names=['t'])",
    "Typed(a=1, b=2, lock=True).is_locked",
    "Typed(a=1, b={'x': 1})",
    "TypedChild(**t, d=torch.ones(3), batch_size=[3])",
    "isinstance(TypedChild(a=1, b=2, d=3), Typed)",
    "sorted(TypedChild.__required_keys__), sorted(TypedChild.__optional_keys__)",
    "sorted(TypedChild.__expected_keys__)",
    "TypedFrozen(a=1).is_locked",
    "f = TypedFrozen(a=1); f.a = 2; f",
    "f = TypedFrozen(a=1); f.clone().is_locked",
    "TypedShadow(clone=torch.ones(3)).clone",
    "TypedShadow(clone=torch.ones(3))['clone']",
    "t[0]",
    "t[0].a",
    "t + 1",
    "t.apply(lambda x: x + 1)",
    "t.select('a')",
    "t.exclude('a')",
    "t.empty()",
    "t.clone().a is t.a",
    "torch.stack([t, t])",
    "torch.cat([t, t])",
    "t.unbind(0)",
    "[row.a for row in t]",
    "len(t), 'a' in t, 'c' in t",
    "dict(**t)",
    "t.to_dict()",
    "t.to_tensordict()",
    "t.reshape(3, 1)",
    "Typed.from_dict({'a': 1, 'b': 2})",
    "Typed.from_dict({'a': 1})",
    "Typed.from_tensordict(td)",
    "Typed.from_tensordict(td, check=False)",
    "Typed.from_tensordict(td, check=False).a",
    "Typed.from_tensordict(t.to_tensordict())",
    "Typed.from_tensordict(t.to_tensordict().set('x', torch.ones(3)))",
    "TensorDict({'t': t}, batch_size=[3])[0]['t']",
    "Plain(t, 'a', batch_size=[3]).x",
    "hash(t)",
]


@pytest.mark.parametrize("program", SAME)
def test_program_gives_what_the_oracle_gives(program):
    check(program)


def test_from_tensordict_takes_the_tensors_but_not_the_entries():
    td = ours.TensorDict({"a": torch.ones(3), "b": torch.ones(3)}, batch_size=[3])
    typed = Typed.from_tensordict(td)
    typed.a = torch.zeros(3)
    assert typed.b is td["b"]
    assert td["a"].sum() == 3


def test_default_fills_a_key_that_is_not_given():
    class State(ours.TypedTensorDict):
        a: torch.Tensor
        b: torch.Tensor = torch.ones(3)

    assert State(a=torch.zeros(3), batch_size=[3]).b.sum() == 3
    assert State(a=torch.zeros(3), b=torch.zeros(3), batch_size=[3]).b.sum() == 0
    assert State.__optional_keys__ == {"b"}


def test_attribute_that_is_no_key_is_refused():
    with pytest.raises(AttributeError, match="nope"):
        Typed(a=1, b=2).nope = 3


def test_unknown_option_raises():
    with pytest.raises(ValueError, match="Unknown TypedTensorDict option 'nope'"):
        ours.TypedTensorDict["nope"]


def test_key_with_the_name_of_a_method_raises():
    with pytest.raises(AttributeError, match=r"found 'clone', which shadows"):

        class State(ours.TypedTensorDict):
            clone: torch.Tensor


class Pickled(ours.TypedTensorDict):
    """At module level, so that pickle finds it."""

    a: torch.Tensor


def test_pickle_and_pytree_keep_the_class():
    state = Pickled(a=torch.ones(3), batch_size=[3])
    assert type(pickle.loads(pickle.dumps(state))) is Pickled
    doubled = pytree.tree_map(lambda x: x * 2, state)
    assert type(doubled) is Pickled
    assert doubled.a.sum() == 6
