"""Each narrowing pass: that it pays, and that a change of what it no longer checks stays right."""

from __future__ import annotations

import builtins
import contextlib

import pytest
import torch
from helpers import guards_of
from torch._dynamo.testing import CompileCounter
from torch.utils import _pytree as pytree
from variables.checks import check, td

import tdcompile
from tdcompile import TensorDict
from tdcompile.guards import policy
from tdcompile.guards.passes import PASSES
from tdcompile.tensordict import mapping


@contextlib.contextmanager
def without(name):
    """Leave one pass out."""
    kept = policy.PASSES
    policy.PASSES = tuple(narrowing for narrowing in PASSES if narrowing.name != name)
    try:
        yield
    finally:
        policy.PASSES = kept


def read(td):
    return td["a"] + 1


def write(td):
    td["z"] = td["a"] + 1


def mapped(td):
    return pytree.tree_map(lambda x: x + 1, td)


PAYS = {
    "library_globals": (write, "__import_tdcompile"),
    "own_builtins": (write, "__builtins_dict__"),
    "pytree_registry": (mapped, "SUPPORTED_NODES"),
    "implied_presence": (read, "DICT_CONTAINS"),
}


def test_every_pass_has_a_test():
    assert list(PAYS) == [narrowing.name for narrowing in PASSES]


@pytest.mark.parametrize("name", PAYS)
def test_pass_pays(name):
    program, text = PAYS[name]
    with without(name):
        wide = guards_of(program, td())
    narrow = guards_of(program, td())
    assert len(narrow) < len(wide)
    assert sum(text in line for line in narrow) < sum(text in line for line in wide)


@contextlib.contextmanager
def compiled_once(program):
    """A compiled function that must be compiled once in this block."""
    counter = CompileCounter()
    with tdcompile.install(strict=True):
        yield torch.compile(program, backend=counter, fullgraph=True)
    assert counter.frame_count == 1


def test_library_globals_change_of_a_function_of_ours_stays_right(monkeypatch):
    with compiled_once(write) as compiled:
        compiled(td())
        original = mapping.misfit_error
        monkeypatch.setattr(mapping, "misfit_error", lambda *args: original(*args))
        value = td(shift=2.0)
        compiled(value)
        assert torch.equal(value["z"], value["a"] + 1)


def test_own_builtins_change_of_a_builtin_stays_right(monkeypatch):
    with compiled_once(write) as compiled:
        compiled(td())
        original = builtins.len
        monkeypatch.setattr(builtins, "len", lambda value: original(value))
        value = td(shift=2.0)
        compiled(value)
        monkeypatch.undo()
        assert torch.equal(value["z"], value["a"] + 1)


def user_max(td, values):
    return td["a"] + max(values)


def test_builtins_of_user_frames_stay_guarded(monkeypatch):
    counter = CompileCounter()
    with tdcompile.install(strict=True):
        compiled = torch.compile(user_max, backend=counter, fullgraph=True)
        first = compiled(td(), [1, 2])
        original = builtins.max
        monkeypatch.setattr(
            builtins, "max", lambda *args: 10 if args == ([1, 2],) else original(*args)
        )
        second = compiled(td(), [1, 2])
        monkeypatch.undo()
    assert torch.equal(first, td()["a"] + 2)
    assert torch.equal(second, td()["a"] + 10)


def test_pytree_registry_grows_stays_right():
    class Pair:
        def __init__(self, left, right):
            self.left, self.right = left, right

    with compiled_once(mapped) as compiled:
        compiled(td())
        pytree.register_pytree_node(
            Pair, lambda pair: ([pair.left, pair.right], None), lambda leaves, _: Pair(*leaves)
        )
        try:
            result = compiled(td(shift=2.0))
        finally:
            pytree._deregister_pytree_node(Pair)
        assert torch.equal(result["a"], td(shift=2.0)["a"] + 1)
        assert torch.equal(result["n", "x"], td(shift=2.0)["n", "x"] + 1)


def read_or_raise(td):
    try:
        return td["k"] + 1
    except KeyError:
        return td["a"] + 2


def get_twice(td):
    return td.get("k", td["a"]) + td.get(("n", "k"), td["a"])


@pytest.mark.parametrize("program", [read_or_raise, get_twice])
def test_implied_presence_key_goes_away_stays_right(program):
    def there():
        value = td(k=torch.full((3, 2), 4.0))
        value["n", "k"] = torch.full((3, 2), 5.0)
        return value

    check(program, [there(), td(), there(), td()], graphs=2)


def test_implied_presence_key_goes_away_raises_as_in_eager():
    with tdcompile.install(strict=True):
        compiled = torch.compile(read, backend="eager")
        compiled(td())
        with pytest.raises(KeyError, match="not found"):
            compiled(td().exclude("a"))
        assert torch.equal(compiled(td()), td()["a"] + 1)


def written_after_presence(td):
    if "k" in td.keys():  # noqa: SIM118 - a tensordict iterates over its rows
        td["z"] = td["k"]
        return td["a"] + 1
    return td["a"] + 2


def test_presence_of_a_key_that_is_only_carried_is_guarded():
    check(written_after_presence, [td(k=torch.zeros(3)), td(), td(k=torch.zeros(3))], graphs=2)


class Config:
    """A program's own table under the name of torch's registry."""

    SUPPORTED_NODES: dict = {}  # noqa: RUF012


CONFIG = Config()


def scale_by_own_table(td):
    return td["a"] * CONFIG.SUPPORTED_NODES["k"]


def test_table_named_like_the_registry_changes_its_value_is_guarded(monkeypatch):
    monkeypatch.setattr(CONFIG, "SUPPORTED_NODES", {"k": 2}, raising=False)
    value = TensorDict({"a": torch.ones(2)}, batch_size=[2])
    torch._dynamo.reset()
    with tdcompile.install(strict=True):
        compiled = torch.compile(scale_by_own_table, backend="eager", fullgraph=True)
        assert compiled(value).tolist() == [2.0, 2.0]
        CONFIG.SUPPORTED_NODES["k"] = 5
        assert compiled(value).tolist() == [5.0, 5.0]
