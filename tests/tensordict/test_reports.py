"""Kinds of faults that users of tensordicts reported: the right value, eager and compiled.

Key names: :func:`both` (run a program eagerly and compiled, compare, and give the result).
"""

from __future__ import annotations

import gc
import operator
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from torch.utils import _pytree as pytree

import tdcompile
from tdcompile import NonTensorStack, TensorClass, TensorDict, tensorclass
from tdcompile.errors import InvalidKeyError, TensorDictIndexError, TensorDictShapeError

ONES = torch.ones


def both(program, *args):
    """Run a program eagerly and as one graph on copies of the arguments; give the result."""
    torch._dynamo.reset()

    def copies():
        return [arg.clone() if hasattr(arg, "clone") else arg for arg in args]

    eager, compiled = copies(), copies()
    expected = program(*eager)
    with tdcompile.install():
        found = torch.compile(program, backend="eager", fullgraph=True)(*compiled)
    for one, other in ((found, expected), (compiled, eager)):
        leaves, spec = pytree.tree_flatten(one)
        expected_leaves, expected_spec = pytree.tree_flatten(other)
        assert spec == expected_spec
        for leaf, expected_leaf in zip(leaves, expected_leaves, strict=True):
            if isinstance(leaf, torch.Tensor):
                torch.testing.assert_close(leaf, expected_leaf, equal_nan=True)
            else:
                assert leaf == expected_leaf
    return expected


# -- dimensions count among the batch dimensions ---------------------------------------------------


def grid(*size, value=0.0):
    nested = TensorDict({"x": torch.full((*size, 2), value)}, [*size])
    return TensorDict({"a": torch.full((*size, 5), value), "n": nested}, [*size])


@pytest.mark.parametrize("size", [(3,), (3, 4), (3, 1, 4)], ids=str)
def test_cat_and_stack_over_each_dim_have_the_batch_size_of_their_leaves(size):
    ndim = len(size)
    tds = [grid(*size), grid(*size, value=1.0)]
    blank = torch.zeros(size)
    calls = [(torch.cat, dim) for dim in range(-ndim, ndim)]
    calls += [(torch.stack, dim) for dim in range(-ndim - 1, ndim + 1)]
    results = both(lambda *tds: [join(tds, dim) for join, dim in calls], *tds)
    for result, (join, dim) in zip(results, calls, strict=True):
        expected = join([blank, blank + 1], dim)
        assert result.batch_size == expected.shape == result["n"].batch_size
        assert torch.equal(result["a"][..., 0], expected)
        assert torch.equal(result["n", "x"][..., 1], expected)


@pytest.mark.parametrize(
    ("join", "dim"),
    [(torch.cat, -2), (torch.cat, 1), (torch.stack, -3), (torch.stack, 2)],
    ids=["cat_low", "cat_high", "stack_low", "stack_high"],
)
def test_dim_that_only_leaves_have_is_refused(join, dim):
    with pytest.raises(TensorDictIndexError, match="dim must be in"):
        join([grid(3), grid(3)], dim)


# -- writing rows ----------------------------------------------------------------------------------

INDICES = {
    "row": lambda td: (1, td.batch_size[1:]),
    "slice": lambda td: (slice(1, 2), td.batch_size[1:]),
    "long_slice": lambda td: (slice(0, 2), td.batch_size[1:]),
    "one_in_front": lambda td: (slice(0, 2), (1, *td.batch_size[1:])),
    "no_batch": lambda td: (slice(1, 2), ()),
    "column": lambda td: ((..., 0), ()),
    "list": lambda td: ([0, 2], td.batch_size[1:]),
    "new_dim": lambda td: (None, td.batch_size),
}


@pytest.mark.parametrize("size", [(3,), (3, 4)], ids=str)
def test_row_write_broadcasts_as_for_tensors(size):
    cases = [make(grid(*size)) for make in INDICES.values()]

    def program(blank, *values):
        results = []
        for (index, _), value in zip(cases, values, strict=True):
            td = blank + 0
            td[index] = value
            results.append(td)
        return results

    values = [grid(*value_size, value=1.0) for _, value_size in cases]
    for result, (index, value_size) in zip(both(program, grid(*size), *values), cases, strict=True):
        expected = torch.zeros(size)
        expected[index] = torch.ones(value_size)
        assert torch.equal(result["a"][..., 0], expected)
        assert torch.equal(result["n", "x"][..., 0], expected)


def test_row_write_of_too_many_rows_is_refused_and_changes_nothing():
    td = grid(3)
    with pytest.raises(TensorDictShapeError, match="does not broadcast"):
        td[0:2] = grid(3, value=1.0)
    assert not td["a"].any()


# -- operators: a tensor meets the batch dimensions, in every form ---------------------------------

BINARY = ("add", "sub", "mul", "truediv", "pow", "gt", "ge", "lt", "le", "eq", "ne")
INPLACE = ("iadd", "isub", "imul", "itruediv", "ipow")


def column(*size):
    return torch.arange(1.0, 1.0 + torch.Size(size).numel()).reshape(size)


@pytest.mark.parametrize("kind", ["tensordict", "tensorclass"])
def test_operator_aligns_a_tensor_with_the_batch_on_either_side(kind):
    functions = [getattr(operator, name) for name in BINARY]
    leaf, tensor = column(2, 3), column(2)
    td = TensorDict({"a": leaf}, [2]) if kind == "tensordict" else Fields(a=leaf, batch_size=[2])
    results = both(lambda td, t: [(f(td, t), f(t, td)) for f in functions], td, tensor)
    wide = tensor.unsqueeze(-1)
    for function, (right, left) in zip(functions, results, strict=True):
        torch.testing.assert_close(right.get("a"), function(leaf, wide))
        torch.testing.assert_close(left.get("a"), function(wide, leaf))


@pytest.mark.parametrize("name", INPLACE)
def test_augmented_assignment_aligns_a_tensor_with_the_batch(name):
    function = getattr(operator, name)

    def program(td, tensor):
        kept = td["a"]
        td = function(td, tensor)
        return td, kept

    td, kept = both(program, TensorDict({"a": column(2, 3)}, [2]), column(2))
    expected = function(column(2, 3), column(2).unsqueeze(-1))
    assert td["a"] is kept
    torch.testing.assert_close(kept, expected)


def test_operand_shape_joins_a_batch_size_that_is_empty():
    result = both(lambda td, t: td * t, TensorDict({"a": ONES(2)}), torch.tensor([10.0, 20.0]))
    assert result.batch_size == (2,)
    assert result["a"].tolist() == [[10.0, 10.0], [20.0, 20.0]]


@pytest.mark.parametrize("swap", [False, True], ids=["wide_right", "wide_left"])
def test_operands_of_two_batch_sizes_give_one_result_in_either_order(swap):
    one, other = TensorDict({"a": column(2)}), TensorDict({"a": column(2)}, [2])
    args = (other, one) if swap else (one, other)
    result = both(lambda x, y: x + y, *args)
    assert result.batch_size == (2,)
    assert result["a"].tolist() == [2.0, 4.0]


# -- names follow the batch dimensions -------------------------------------------------------------

NAMES = {
    "index": (lambda td: td[0], ["b"]),
    "new_dim": (lambda td: td[None], [None, "t", "b"]),
    "mask": (lambda td: td[torch.ones(2, 3, dtype=torch.bool)], [None]),
    "transpose": (lambda td: td.transpose(0, 1), ["b", "t"]),
    "permute": (lambda td: td.permute(1, 0), ["b", "t"]),
    "stack": (lambda td: torch.stack([td, td]), [None, "t", "b"]),
    "stack_last": (lambda td: torch.stack([td, td], -1), ["t", "b", None]),
    "cat": (lambda td: torch.cat([td, td]), ["t", "b"]),
    "flatten": (lambda td: td.flatten(0, 1), [None]),
    "view": (lambda td: td.view(6), [None]),
    "expand": (lambda td: td.expand(4, 2, 3), [None, "t", "b"]),
    "unsqueeze": (lambda td: td.unsqueeze(1), ["t", None, "b"]),
    "squeeze": (lambda td: td[:1].squeeze(0), ["b"]),
    "sum": (lambda td: td.sum(0), ["b"]),
    "unbind": (lambda td: td.unbind(1)[0], ["t"]),
    "split": (lambda td: td.split(1, 1)[0], ["t", "b"]),
    "flip": (lambda td: td.flip(0), ["t", "b"]),
    "pad": (lambda td: td.pad([1, 0]), ["t", "b"]),
    "copy": (lambda td: td.copy(), ["t", "b"]),
    "arithmetic": (lambda td: td + 1, ["t", "b"]),
}


def test_names_follow_the_batch_dimensions():
    programs = [program for program, _ in NAMES.values()]
    td = TensorDict({"a": ONES(2, 3, 1), "n": {"x": ONES(2, 3)}}, [2, 3], names=["t", "b"])
    results = both(lambda td: [program(td) for program in programs], td)
    expected = {name: names for name, (_, names) in NAMES.items()}
    assert dict(zip(NAMES, [result.names for result in results], strict=True)) == expected
    assert dict(zip(NAMES, [result["n"].names for result in results], strict=True)) == expected


def test_names_of_a_nested_tensordict_stay_where_the_parent_has_none():
    nested = TensorDict({"v": ONES(2, 3)}, [2, 3], names=[None, "agent"])
    td = TensorDict({"k": nested}, [2], names=["time"])
    td.names = None
    assert td["k"].names == [None, "agent"]


def test_expanded_and_indexed_by_two_dimensional_indices_has_the_shape_of_its_leaves():
    td = grid(3, 3).unsqueeze(0).expand(50, 3, 3)
    result = both(lambda td: td[torch.arange(3).expand(3, 3)][0:], td)
    assert result.batch_size == (3, 3, 3, 3) == result["a"].shape[:4]


# -- construction ----------------------------------------------------------------------------------


def test_batch_size_of_nested_dictionaries_is_empty_unless_it_is_asked_for():
    source = {"k": {"x": ONES(5, 4)}, "y": ONES(5, 4, 2)}
    assert TensorDict(source).batch_size == ()
    assert TensorDict.from_dict(source, auto_batch_size=True).batch_size == (5, 4)
    assert TensorDict(source, [5])["k"].batch_size == (5,)


@pytest.mark.parametrize("key", [1, None, ("a", 1), (), 1.5, b"a"], ids=repr)
def test_key_that_is_no_string_is_told(key):
    for call in (lambda: TensorDict({key: 1}), lambda: TensorDict().set(key, ONES(1))):
        with pytest.raises(InvalidKeyError, match="expected a key"):
            call()


def test_to_dict_gives_back_lists_of_strings():
    source = {"k": ["one", "two"], "n": {"s": "text", "q": None}}
    td = TensorDict(source)
    assert td.to_dict() == source


# -- memory and threads ----------------------------------------------------------------------------


def _lock(td):
    td.lock_()
    td.unlock_()


def _fail(td):
    with pytest.raises(KeyError):
        td["absent"]


FREED = {
    "set": lambda td: td.set("b", td["a"] + 1),
    "reduce": lambda td: td.view(-1).sum(),
    "cat": lambda td: torch.cat([td, td]),
    "stack_and_unbind": lambda td: torch.stack([td, td]).unbind(0),
    "backward": lambda td: (td["a"] * 2).sum().backward(),
    "flatten_context": lambda td: td.flatten_keys().__enter__().__exit__(None, None, None),
    "lock": _lock,
    "unlock_context": lambda td: td.lock_().unlock_().__enter__().__exit__(None, None, None),
    "state_dict": lambda td: td.state_dict(),
    "keys": lambda td: list(td.items(True, True)),
    "apply": lambda td: td.named_apply(lambda key, leaf: leaf + 1),
    "pad": lambda td: td.detach().pad([1, 0]),
    "error": _fail,
    "tensorclass": lambda td: Fields(a=td["a"].detach(), batch_size=td.batch_size).clone(),
    "namedtuple": lambda td: td.to_namedtuple(),
}


@pytest.mark.parametrize("use", FREED.values(), ids=FREED)
def test_tensordict_is_freed_without_the_collector(use):
    gc.collect()
    gc.disable()
    try:
        td = TensorDict({"a": ONES(2, 3, requires_grad=True), "n": {"x": ONES(2, 3)}}, [2, 3])
        alive = [weakref.ref(td), weakref.ref(td["n"]), weakref.ref(td["n", "x"])]
        result = use(td)
        del td, result
        assert [ref() is None for ref in alive] == [True] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["transpose", "unsqueeze", "flatten_keys", "view"])
def test_result_of_a_view_does_not_keep_its_source_alive(name):
    args = {"transpose": (0, 1), "unsqueeze": (0,), "flatten_keys": (), "view": (6,)}[name]
    torch._dynamo.reset()
    with tdcompile.install():
        functions = [
            lambda td: getattr(td, name)(*args),
            torch.compile(lambda td: getattr(td + 1, name)(*args), backend="eager"),
        ]
        for function in functions:
            function(grid(2, 3))  # what is left of a trace itself goes by the collector
            source = grid(2, 3)
            alive = weakref.ref(source)
            result = function(source)
            del source
            assert alive() is None
            assert result is not None


def test_threads_on_objects_of_their_own_do_not_meet():
    errors = []

    def work():
        try:
            for _ in range(50):
                td = grid(2, 3).to("meta").lock_()
                td.unlock_()["n"]["y"] = torch.zeros(2, 3, device="meta")
                assert td.device.type == "meta"
                assert td.transpose(0, 1).batch_size == (3, 2)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_import_changes_nothing_in_torch():
    program = (
        "import torch, sys\n"
        "import torch._functorch.vmap as vmap, torch.nn as nn\n"
        "owners = (vmap, torch, torch.Tensor, nn.Module, torch.utils._pytree)\n"
        "before = [dict(vars(owner)) for owner in owners]\n"
        "nodes = dict(torch.utils._pytree.SUPPORTED_NODES)\n"
        "import tdcompile\n"
        "for owner, old in zip(owners, before):\n"
        "    changed = [k for k, v in vars(owner).items() if k in old and old[k] is not v]\n"
        "    assert not changed, (owner, changed)\n"
        "assert all(torch.utils._pytree.SUPPORTED_NODES[k] is v for k, v in nodes.items())\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- vmap ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [None, 2, 4], ids=str)
@pytest.mark.parametrize("kind", ["tensordict", "tensorclass"])
def test_vmap_with_chunks_matches_tensors(kind, chunk_size):
    leaves = {"a": column(6), "b": ONES(6)}
    whole = TensorDict(leaves, [6]) if kind == "tensordict" else Pair(**leaves, batch_size=[6])

    def program(value):
        add = torch.vmap(lambda o: o.get("a") + o.get("b"), chunk_size=chunk_size)
        more = torch.vmap(lambda o: o + 1, chunk_size=chunk_size)
        return add(value), more(value)

    total, plus = both(program, whole)
    assert total.tolist() == (leaves["a"] + 1).tolist()
    assert type(plus) is type(whole)
    assert plus.batch_size == (6,)
    assert plus.get("a").tolist() == (leaves["a"] + 1).tolist()


# -- tensorclasses in compiled code ----------------------------------------------------------------


class Fields(TensorClass):
    """One tensor."""

    a: torch.Tensor


@tensorclass
class Pair:
    """Two tensors."""

    a: torch.Tensor
    b: torch.Tensor


@tensorclass
class Scaled:
    """A tensor that is doubled when an instance is made by the user."""

    a: torch.Tensor

    def __post_init__(self):
        self.a = self.a * 2


@tensorclass
class Defaults:
    """Fields with defaults, one of them no tensor."""

    a: torch.Tensor
    bias: torch.Tensor = torch.full((2,), 3.0)
    label: str = "none"


def test_post_init_runs_in_compiled_code_as_in_eager():
    result = both(lambda x: Scaled(x + 1, batch_size=[2]).a, ONES(2))
    assert result.tolist() == [4.0, 4.0]


def test_defaults_of_fields_hold_in_compiled_code():
    def program(x):
        made = Defaults(x, batch_size=[2])
        return made.a * made.bias, made.label

    result, label = both(program, ONES(2))
    assert result.tolist() == [3.0, 3.0]
    assert label == "none"


# -- stacks of values that are no tensors ----------------------------------------------------------


@tensorclass
class Named:
    """A tensor and a name."""

    w: torch.Tensor
    name: str


def named_rows(*names):
    return torch.stack([Named(torch.tensor([float(i)]), name) for i, name in enumerate(names)])


def test_advanced_index_of_names_copies_and_basic_index_does_not():
    rows = named_rows("a", "b", "c")
    picked = rows[torch.tensor([0, 0, 2])]
    picked[torch.tensor([True, False, False])] = rows[torch.tensor([1])]
    assert list(picked.name) == ["b", "a", "c"]
    assert picked.w.flatten().tolist() == [1.0, 0.0, 2.0]
    assert list(rows.name) == ["a", "b", "c"]
    rows[1:][0] = rows[0]
    assert list(rows.name) == ["a", "a", "c"]


@pytest.mark.parametrize("values", ["aa", "ab"], ids=["equal", "different"])
def test_stack_of_values_is_a_stack_whatever_they_are(values):
    stacked = torch.stack([TensorDict(s=value) for value in values])
    assert type(stacked.get("s")) is NonTensorStack
    assert stacked["s"] == list(values)
    assert torch.cat([stacked, stacked])["s"] == list(values) * 2
    assert [row["s"] for row in stacked] == list(values)
    stacked["s"][0] = "z"
    stacked[1] = TensorDict(s="y")
    assert stacked["s"] == ["z", "y"]


def test_one_value_of_many_rows_is_one_value():
    td = TensorDict({"s": "woof"}, [2])
    assert td["s"] == "woof" == td[0]["s"]
