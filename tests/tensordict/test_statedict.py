"""State dicts: what they hold and how they are loaded, as the oracle, eager and compiled."""

from __future__ import annotations

import collections
import io

import oracle as packages
import pytest
import torch
from oracle import example, run_both

import tdcompile
from tdcompile.errors import LockedError, TensorDictShapeError
from tdcompile.tensordict import MetaData, TensorDict

Z, ONES = torch.zeros, torch.ones


def held(state):
    """A state dict as plain data, metadata of each level included."""
    about = getattr(state, "_metadata", None)
    items = {k: held(v) if isinstance(v, dict) else v for k, v in state.items()}
    return items, None if about is None else {k: dict(v) for k, v in about.items()}


SAVED = {
    "flat": lambda p: held(example(p).state_dict()),
    "nested": lambda p: held(example(p).state_dict(flatten=False)),
    "prefix": lambda p: held(example(p).state_dict(prefix="p.")),
    "prefix_nested": lambda p: held(example(p).state_dict(prefix="p.", flatten=False)),
    "destination": lambda p: held(
        example(p).state_dict(p.TensorDict(q=1).state_dict(), prefix="o.")
    ),
    "plain_destination": lambda p: example(p).state_dict({}),
    "empty_level": lambda p: held(p.TensorDict({"n": {}}).state_dict()),
    "device": lambda p: held(p.TensorDict({"n": {"x": Z(2)}}, [2], device="cpu").state_dict()),
    "collision": lambda p: p.TensorDict({"a.b": 1, "a": {"b": 2}}).state_dict(),
    "levels_collide": lambda p: p.TensorDict({"a.b": {"d": 1}, "a": {"b": {"c": 2}}}).state_dict(),
    "collision_kept_apart": lambda p: held(
        p.TensorDict({"a.b": 1, "a": {"b": 2}}).state_dict(flatten=False)
    ),
    "type": lambda p: isinstance(example(p).state_dict(), collections.OrderedDict),
}


@pytest.mark.parametrize("program", SAVED.values(), ids=SAVED)
def test_state_dict_matches_oracle(program):
    run_both(program)


def target(p, **kwargs):
    """What :func:`example` is, with other values."""
    td = example(p, **kwargs)
    td.apply_(lambda leaf: leaf.fill_(7))
    td["s"] = "other"
    return td


def state(p, **kwargs):
    return example(p).state_dict(**kwargs)


LOADED = {
    "flat": lambda p: target(p).load_state_dict(state(p)),
    "nested": lambda p: target(p).load_state_dict(state(p, flatten=False)),
    "assign": lambda p: target(p).load_state_dict(state(p), assign=True),
    "locked": lambda p: target(p).lock_().load_state_dict(state(p)),
    "locked_assign": lambda p: target(p).lock_().load_state_dict(state(p), assign=True),
    "empty": lambda p: target(p).load_state_dict({}),
    "too_much": lambda p: p.TensorDict(a=1).load_state_dict({"a": Z(()), "b": Z(())}),
    "too_little_not_strict": lambda p: target(p).load_state_dict({"a": Z(3, 2)}, strict=False),
    "new_not_strict": lambda p: p.TensorDict().load_state_dict(
        p.TensorDict({"n": {"x": ONES(3)}, "a": Z(3)}, [3]).state_dict(), strict=False
    ),
    "joined_without_metadata": lambda p: target(p).load_state_dict(dict(state(p))),
    "joined_when_asked": lambda p: p.TensorDict({"n": {"x": ONES(3)}}).load_state_dict(
        {"n.x": Z(3)}, from_flatten=True
    ),
    "nested_plain": lambda p: p.TensorDict({"n": {"x": ONES(3)}}).load_state_dict(
        {"n": {"x": Z(3)}}
    ),
    "misfit": lambda p: p.TensorDict(a=ONES(3)).load_state_dict({"a": Z(4)}),
    "other_dtype": lambda p: p.TensorDict(a=ONES(3)).load_state_dict({"a": Z(3, dtype=int)}),
    "batch_size": lambda p: p.TensorDict(a=ONES(3)).load_state_dict(
        p.TensorDict({"a": Z(3)}, [3]).state_dict()
    ),
    "other_device": lambda p: p.TensorDict(a=ONES(3), device="cpu").load_state_dict(
        p.TensorDict(a=ONES(3), device="meta").state_dict()
    ),
    "old_form": lambda p: p.TensorDict({"a": ONES(3), "n": {"x": Z(3)}}).load_state_dict(
        {
            "a": Z(3),
            "n": {"x": ONES(3), "__batch_size": torch.Size([3]), "__device": None},
            "__batch_size": torch.Size([3]),
            "__device": None,
        }
    ),
    "empty_level": lambda p: p.TensorDict({"a": ONES(3), "n": {}}).load_state_dict({"a": Z(3)}),
    "no_mapping": lambda p: p.TensorDict(a=1).load_state_dict(3),
}  # fmt: skip


@pytest.mark.parametrize("program", LOADED.values(), ids=LOADED)
def test_loaded_tensordict_matches_oracle(program):
    run_both(program)


def test_leaf_and_level_of_one_joined_key_are_told_apart_or_refused():
    td = TensorDict({"a.b": ONES(2), "a": {"b": {"c": Z(2)}}})
    with pytest.raises(KeyError, match="flatten=False"):
        td.state_dict()
    saved = td.state_dict(flatten=False)
    assert (TensorDict({}).load_state_dict(saved, strict=False) == td).all()


def test_dotted_key_is_loaded_where_it_was():
    td = TensorDict({"a.b": ONES(3), "n": {"c.d": ONES(3)}})
    saved = (td * 2).state_dict()
    td.load_state_dict(saved)
    assert td["a.b"].tolist() == [2, 2, 2]
    assert td["n", "c.d"].tolist() == [2, 2, 2]


@pytest.mark.parametrize("flatten", [True, False], ids=["flat", "nested"])
def test_state_dict_of_the_oracle_is_loaded(flatten):
    saved = packages.example(packages.oracle).state_dict(flatten=flatten)
    td = target(packages.ours).load_state_dict(saved)
    packages.assert_same(td, packages.example(packages.ours))


def test_state_dict_saves_and_loads_weights_only():
    td = TensorDict({"a": ONES(3), "n": {"x": Z(3), "s": "text"}}, [3])
    file = io.BytesIO()
    torch.save(td.state_dict(), file)
    file.seek(0)
    back = torch.load(file, weights_only=True)
    assert type(back) is collections.OrderedDict
    loaded = TensorDict({"a": Z(3), "n": {"x": Z(3), "s": ""}}).load_state_dict(back)
    assert loaded.batch_size == (3,)
    assert loaded["n", "s"] == "text"


def test_load_copies_into_the_tensors_that_are_here():
    td = TensorDict({"a": ONES(3), "n": {"x": Z(3)}}, [3])
    leaf, nested = td["a"], td["n"]
    td.load_state_dict((td + 1).state_dict())
    assert td["a"] is leaf
    assert td["n"] is nested
    assert leaf.tolist() == [2, 2, 2]


def test_load_with_assign_keeps_nested_tensordicts():
    td, other = TensorDict({"n": {"x": Z(3)}}), TensorDict({"n": {"x": Z(4)}})
    nested = td["n"]
    td.load_state_dict(other.state_dict(), assign=True)
    assert td["n"] is nested
    assert td["n", "x"].data_ptr() == other["n", "x"].data_ptr()


@pytest.mark.parametrize(
    ("saved", "kwargs", "error"),
    [
        ({"a": Z(3), "n": {"x": Z(4)}}, {}, TensorDictShapeError),
        ({"a": Z(3), "n": {"y": Z(3)}}, {}, RuntimeError),
        ({"a": Z(3), "n": {"y": Z(4)}}, {"strict": False}, TensorDictShapeError),
        (TensorDict({"a": Z(3), "n": {"x": Z(3)}}).state_dict(), {"assign": True}, LockedError),
    ],
    ids=["shape", "key", "new_shape", "locked"],
)
def test_load_that_fails_changes_nothing(saved, kwargs, error):
    td = TensorDict({"a": ONES(3), "n": {"x": ONES(3)}}, [3])
    before = td.clone()
    if error is LockedError:
        td.lock_()
    with pytest.raises(error):
        td.load_state_dict(saved, **kwargs)
    assert (td == before).all()
    assert td.batch_size == (3,)


def test_keep_vars_gives_the_tensors_themselves():
    td = TensorDict(a=ONES(2, requires_grad=True))
    assert td.state_dict(keep_vars=True)["a"] is td["a"]
    assert not td.state_dict()["a"].requires_grad


def _into(td, flatten):
    other = TensorDict({"a": Z(3), "n": {"x": Z(3)}})
    return other.load_state_dict(td.state_dict(flatten=flatten)) + 1


COMPILED = {
    "state_dict": lambda td: (td * 2).state_dict(),
    "state_dict_nested": lambda td: (td * 2).state_dict(flatten=False),
    "state_dict_of_input": lambda td: (td.state_dict(), td["a"] + 1),
    "load": lambda td: _into(td, True),
    "load_nested": lambda td: _into(td, False),
    "load_into_input": lambda td: td.load_state_dict((td + 1).state_dict())["a"] + 1,
    "load_assign": lambda td: td.load_state_dict((td + 1).state_dict(), assign=True)["a"] + 1,
}


def listed(value):
    if isinstance(value, TensorDict):
        return listed(value.to_dict()), tuple(value.batch_size)
    if isinstance(value, dict):
        return type(value).__name__, [(k, listed(v)) for k, v in value.items()]
    if isinstance(value, tuple):
        return [listed(item) for item in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("program", COMPILED.values(), ids=COMPILED)
def test_state_dict_compiled_is_one_graph_and_agrees_with_eager(program):
    def make():
        return TensorDict({"a": torch.arange(3.0), "n": {"x": ONES(3)}}, [3])

    torch._dynamo.reset()
    eager, compiled = make(), make()
    with tdcompile.install():
        found = torch.compile(program, backend="eager", fullgraph=True)(compiled)
    expected = program(eager)
    assert listed(found) == listed(expected)
    assert listed(compiled) == listed(eager)
    for one, other in zip((found, *compiled.values()), (expected, *eager.values()), strict=True):
        about = getattr(other, "_metadata", None)
        assert getattr(one, "_metadata", None) == about


def test_stacked_and_other_values_come_back():
    td = torch.stack([TensorDict(s="a"), TensorDict(s="b")])
    td.set("m", MetaData("note", td.batch_size))
    for flatten in (True, False):
        loaded = TensorDict({}, [2]).load_state_dict(td.state_dict(flatten=flatten), strict=False)
        assert loaded["s"] == ["a", "b"]
        assert type(loaded.get("m")) is MetaData
        assert loaded["m"] == "note"
