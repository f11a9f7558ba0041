"""Lazy stacks against the tensordict package, program by program; and compiled against eager."""

from __future__ import annotations

import copy
import pickle

import lazy_programs as programs
import pytest
import tensordict as oracle
import torch
from torch.utils import _pytree as pytree

import tdcompile as ours
from tdcompile import (
    LazyStackedTensorDict,
    TensorDict,
    lazy_legacy,
    lazy_stack,
    maybe_dense_stack,
    set_lazy_legacy,
)
from tdcompile.errors import KeyMismatchError, LockedError, TensorDictShapeError
from tdcompile.tensordict import dense_stack_tds
from tdcompile.tensordict.lazy.stack import stacked_entry, unstack_entries

STACK_DIMS = (0, 1, -1)
GROUPS = {
    "leafwise": programs.LEAFWISE,
    "reading": programs.READING,
    "shapes": programs.SHAPES,
    "dense shapes": programs.DENSE_SHAPES,
    "indexing": programs.INDEXING,
    "positions": programs.POSITIONS,
    "updates": programs.UPDATES,
    "key updates": programs.KEY_UPDATES,
}
CASES = [(group, name) for group, table in GROUPS.items() for name in table]
# The reference leaves alone, in some of these, what only some elements have.
ONLY_COMMON_KEYS = {
    ("updates", "index number"),
    ("updates", "index second"),
    ("key updates", "clear"),
    ("key updates", "index mask"),
    ("key updates", "index pair"),
    ("key updates", "index apart"),
}


def is_update(group):
    return group in ("updates", "key updates")


@pytest.mark.parametrize(("group", "name"), CASES, ids=[f"{g}-{n}" for g, n in CASES])
def test_lazy_stack_agrees_with_the_reference(group, name):
    program = GROUPS[group][name]
    for kind in programs.KINDS:
        if kind == "keys" and (group, name) in ONLY_COMMON_KEYS:
            continue
        for stack_dim in STACK_DIMS:
            arguments = (kind, stack_dim, program, is_update(group))
            expected = programs.outcome(oracle, *arguments)
            found = programs.outcome(ours, *arguments)
            if isinstance(expected, Exception):
                # Where elements differ the reference gives up more often.
                if kind == "same" and not isinstance(found, Exception):
                    raise AssertionError(f"{kind}, {stack_dim}: {found} for {expected!r}")
                continue
            if isinstance(found, Exception):
                raise AssertionError(f"{kind}, {stack_dim}: {found!r}") from found
            difference = programs.difference(found, expected)
            assert difference is None, f"{kind}, {stack_dim}: {difference}"


@pytest.mark.parametrize("name", programs.DENSE_SHAPES)
def test_elements_that_differ_give_the_same_under_a_key_in_which_they_do_not(name):
    program = programs.DENSE_SHAPES[name]
    for stack_dim in STACK_DIMS:
        expected = programs.outcome(ours, "same", stack_dim, program, False)
        found = programs.outcome(ours, "keys", stack_dim, program, False)
        if isinstance(found, Exception) or not isinstance(expected, TensorDict):
            continue
        assert torch.equal(found["a"], expected["a"])


COMPILED = [
    *[("leafwise", name) for name in ("add number", "times tensor", "compare", "where td")],
    *[("leafwise", name) for name in ("apply two", "double", "zeros_like")],
    *[("shapes", name) for name in ("unbind 1", "unsqueeze 1", "permute", "flatten", "stack")],
    *[("shapes", name) for name in ("cat one", "expand", "repeat_interleave", "to_lazystack")],
    *[("dense shapes", name) for name in ("flip", "sum", "narrow")],
    *[("indexing", name) for name in ("int", "int second", "slice", "none")],
    *[("updates", name) for name in ("update", "zero_", "index number", "index td", "apply_")],
    *[("reading", name) for name in ("batch_size", "copy")],
    ("updates", "iadd"),
    *[("key updates", name) for name in ("pop", "rename", "clear")],
]


@pytest.mark.parametrize(("group", "name"), COMPILED, ids=[f"{g}-{n}" for g, n in COMPILED])
def test_compiled_is_one_graph_and_agrees_with_eager(group, name):
    program = GROUPS[group][name]
    expected = programs.outcome(ours, "shapes", 1, program, is_update(group))
    td = programs.build(ours, "shapes", 1)
    names = programs.scope(ours, td)
    body = f"{program}\n    return td" if is_update(group) else f"return {program}"
    exec(f"def program(td):\n    {body}", names)
    with ours.install():
        found = torch.compile(names["program"], backend="eager", fullgraph=True)(td)
    assert not isinstance(expected, Exception)
    assert programs.difference(found, expected) is None


@pytest.mark.parametrize(
    ("group", "name"),
    [("positions", "mask all"), ("key updates", "index mask"), ("key updates", "index pair")],
)
def test_compiled_positions_that_are_data_go_through_stacked_entries(group, name):
    program = GROUPS[group][name]
    expected = programs.outcome(ours, "same", 0, program, is_update(group))
    td = programs.build(ours, "same", 0)
    names = programs.scope(ours, td)
    body = f"{program}\n    return td" if is_update(group) else f"return {program}"
    exec(f"def program(td):\n    {body}", names)
    with ours.install():
        found = torch.compile(names["program"], backend="eager", fullgraph=True)(td)
    assert programs.difference(found, expected) is None


# -- elements ------------------------------------------------------------------------------------


def two():
    return [TensorDict(a=torch.zeros(3)), TensorDict(a=torch.ones(4), b=torch.ones(2))]


def test_index_along_the_stack_dim_gives_the_element_itself():
    tds = two()
    stack = lazy_stack(tds)
    assert stack[0] is tds[0]
    assert stack[-1] is tds[1]
    assert stack[:1].tensordicts[0] is tds[0]
    assert stack[torch.tensor([1, 0])].tensordicts[0] is tds[1]
    assert stack.unbind(0) == tuple(tds) if False else stack.unbind(0)[0] is tds[0]


def test_batch_size_has_minus_one_where_elements_differ():
    tds = [TensorDict(batch_size=[3, 5]), TensorDict(batch_size=[4, 5])]
    assert lazy_stack(tds, -1).batch_size == (-1, 5, 2)
    assert lazy_stack(tds)[0].batch_size == (3, 5)
    assert lazy_stack(tds)[1, 3].batch_size == (5,)
    with pytest.raises(TensorDictShapeError, match="one with strict_shape"):
        lazy_stack(tds, strict_shape=True)
    with pytest.raises(RuntimeError, match="one number"):
        lazy_stack([*tds, TensorDict()])


@pytest.mark.parametrize("bad", [[], [torch.zeros(2), TensorDict()]])
def test_stack_of_what_is_no_tensordict_raises(bad):
    with pytest.raises((RuntimeError, AttributeError, TypeError)):
        lazy_stack(bad)
    with pytest.raises(TypeError, match="expected tensordicts"):
        LazyStackedTensorDict(TensorDict(), torch.zeros(2))


def test_get_forms():
    stack = lazy_stack(two())
    with pytest.raises(TensorDictShapeError, match="as_list=True"):
        stack["a"]
    assert [x.shape for x in stack.get("a", as_list=True)] == [(3,), (4,)]
    assert stack.get("a", as_padded_tensor=True).tolist() == [[0, 0, 0, 0], [1, 1, 1, 1]]
    left = stack.get("a", as_padded_tensor=True, padding_side="left", padding_value=7)
    assert left.tolist() == [[7, 0, 0, 0], [1, 1, 1, 1]]
    assert stack.get("a", as_nested_tensor=True).is_nested
    assert stack.get("b", as_list=True) is None
    outer = TensorDict(inner=lazy_stack([stack, stack.copy()]))
    assert len(outer.get(("inner", "a"), as_list=True)[0]) == 2
    assert outer.get(("inner", "a"), as_padded_tensor=True).shape == (2, 2, 4)
    with pytest.raises(ValueError, match="one of as_list"):
        stack.get("a", as_list=True, as_padded_tensor=True)
    with pytest.raises(ValueError, match="padding_side"):
        stack.get("a", as_padded_tensor=True, padding_side="top")
    assert stack.get_item_shape("a") == (2, -1)


def test_stack_is_made_of_dictionaries():
    items = [{"a": torch.zeros(3)}, {"a": torch.ones(4)}]
    stack = LazyStackedTensorDict.from_list(items)
    assert stack.batch_size == (2,)
    assert stack[1]["a"] is items[1]["a"]
    named = LazyStackedTensorDict.from_dict(
        dict(zip("01", items, strict=True)), auto_batch_size=True, stack_dim=1, names=["t", "s"]
    )
    assert named.batch_size == (-1, 2)
    assert named.names == ["t", "s"]
    with pytest.raises(KeyError):
        LazyStackedTensorDict.from_dict({"a": {}})


def test_list_is_cut_along_the_stack_dim():
    stack = lazy_stack([TensorDict(), TensorDict()])
    stack["a"] = [torch.ones(2), torch.zeros(1)]
    assert stack[1]["a"].shape == (1,)
    grid = lazy_stack([lazy_stack([TensorDict(), TensorDict()]) for _ in range(3)], 1)
    grid["a"] = [[torch.ones(3 * i + j) for j in range(3)] for i in range(2)]
    assert grid[1, 2]["a"].shape == (5,)


def test_append_insert_extend():
    stack = lazy_stack([TensorDict(a=torch.zeros(2))])
    stack.append(TensorDict(a=torch.ones(2)))
    stack.insert(0, TensorDict(a=torch.full((2,), 5.0)))
    stack.extend(stack.clone())
    assert stack["a"][:, 0].tolist() == [5, 0, 1, 5, 0, 1]
    with pytest.raises(TypeError, match="TensorDictBase"):
        stack.append(torch.zeros(2))
    with pytest.raises(ValueError, match="Batch sizes"):
        stack.append(TensorDict(batch_size=[2]))
    with pytest.raises(ValueError, match="Devices"):
        stack.append(TensorDict(device="meta"))
    with pytest.raises(LockedError):
        stack.lock_().append(TensorDict())
    assert len(stack) == 6


def test_lock_reaches_elements_and_holds_them():
    stack = lazy_stack(two()).lock_()
    assert stack.is_locked
    assert stack[0].is_locked
    with pytest.raises(LockedError):
        stack[0].unlock_()
    with pytest.raises(LockedError):
        stack["z"] = torch.zeros(2)
    with stack.unlock_():
        stack["z"] = torch.zeros(2)
    assert stack.is_locked
    assert not stack.unlock_()[0].is_locked
    outer = TensorDict(l=stack).lock_()
    with pytest.raises(LockedError):
        stack.unlock_()
    assert outer.unlock_() is outer
    assert not stack[1].is_locked


@pytest.mark.parametrize(
    "change",
    [
        lambda stack: stack.set("z", torch.zeros(2, 3)),
        lambda stack: stack.update({"y": torch.zeros(2), "z": {"q": torch.zeros(2)}}),
        lambda stack: stack.rename_key_("a", "z"),
        lambda stack: stack.rename_key_("b", "z"),
        lambda stack: stack.del_("a"),
        lambda stack: stack.select("a", inplace=True),
        lambda stack: stack.update_({"a": torch.zeros(2, 3)}),
        lambda stack: stack.set_("a", torch.zeros(2, 4)),
        lambda stack: stack.set("z", [torch.zeros(2)]),
        lambda stack: stack.append(TensorDict(batch_size=[7])),
        lambda stack: stack.__setitem__(slice(None), {"a": torch.ones(2, 4)}),
    ],
)
def test_failed_write_changes_no_element(change):
    stack = lazy_stack(two())
    before = [dict(element.items()) for element in stack.tensordicts]
    values = [element["a"].clone() for element in stack.tensordicts]
    stack[1].lock_()
    try:
        change(stack)
    except (LockedError, TensorDictShapeError, KeyError, RuntimeError, ValueError):
        after = [dict(element.items()) for element in stack.tensordicts]
        assert [list(d) for d in after] == [list(d) for d in before]
        for i, value in enumerate(values):
            assert torch.equal(after[i]["a"], value)
            assert after[i]["a"] is before[i]["a"]
    else:
        raise AssertionError("expected a refusal")


def test_writes_reach_the_elements():
    tds = two()
    stack = lazy_stack(tds)
    stack += 1
    stack.zero_()
    assert tds[1]["b"].sum() == 0
    nested = lazy_stack([TensorDict(n=TensorDict(x=torch.zeros(2))) for _ in range(2)])
    nested["n"]["y"] = torch.ones(2)
    assert nested[0]["n", "y"] == 1
    nested["n", "x"] += 1
    assert nested[0]["n", "x"].tolist() == [1, 1]


def test_exclusive_keys_of_nested_tensordicts_survive_a_nested_write():
    stack = lazy_stack([TensorDict(n=TensorDict(x=torch.zeros(1))), TensorDict()])
    stack["n", "y"] = torch.ones(2)
    assert sorted(stack[0]["n"].keys()) == ["x", "y"]
    assert list(stack[1]["n"].keys()) == ["y"]


def test_update_of_a_dense_tensordict_with_a_stack_of_differing_elements():
    dense = TensorDict({"p": {"c": torch.zeros(2, 4), "e": torch.zeros(2)}}, [2])
    dense.update(
        TensorDict({"p": lazy_stack([TensorDict(c=torch.ones(i + 3)) for i in (0, 1)])}, [2])
    )
    assert isinstance(dense["p"], LazyStackedTensorDict)
    assert dense["p"][0]["c"].shape == (3,)
    assert dense["p", "e"].sum() == 0


# -- names, printing, copies ---------------------------------------------------------------------


def test_names_are_those_of_the_elements_and_one_of_the_stack():
    tds = [TensorDict(a=torch.zeros(2, 3), batch_size=[2, 3], names=["x", "y"]) for _ in range(2)]
    stack = LazyStackedTensorDict(*tds, stack_dim=1, stack_dim_name="s")
    assert stack.names == ["x", "s", "y"]
    assert stack[:, 0].names == ["x", "y"]
    assert stack.permute(2, 1, 0).names == ["y", "s", "x"]
    stack.names = ["a", "b", "c"]
    assert tds[0].names == ["a", "c"]
    assert stack.to_lazystack(0).names == ["a", "b", "c"]


def test_names_of_nested_dimensions_are_not_given_twice():
    inner = TensorDict({}, [3, 4], names=["c", "d"])
    stack = lazy_stack([TensorDict({"n": inner.copy()}, [3], names=["c"]) for _ in range(2)], -1)
    with pytest.raises(ValueError, match="'d' twice"):
        stack.names = ["c", "d"]
    stack.names = ["c", "e"]
    assert stack["n"].names == ["c", "e", "d"]
    td = TensorDict({"n": inner}, [3])
    with pytest.raises(ValueError, match="'d' twice"):
        td.names = ["d"]


@pytest.mark.parametrize("pads", [[1, 0, 0, 2], [0, 1], [-1, 0, 0, 1]])
def test_pad_agrees_with_the_reference(pads):
    for kind in ("same", "shapes", "keys", "of_stacks"):
        for stack_dim in STACK_DIMS:
            program = f"td.pad({pads}, value=9)"
            found, expected = (
                programs.outcome(package, kind, stack_dim, program, False)
                for package in (ours, oracle)
            )
            assert not isinstance(found, Exception)
            if not isinstance(expected, Exception):
                assert programs.difference(found, expected) is None


def test_pad_in_place_keeps_the_elements():
    tds = [TensorDict(x=torch.ones(4), batch_size=[4]) for _ in range(2)]
    stack = lazy_stack(tds)
    assert stack.pad([0, 1, 0, 1], value=9.0, inplace=True) is stack
    assert stack[0] is tds[0]
    assert stack["x"].tolist() == [[1, 1, 1, 1, 9], [1, 1, 1, 1, 9], [9, 9, 9, 9, 9]]


@pytest.mark.parametrize("name", ["flatten", "contiguous", "repeat"])
def test_shape_operation_in_place_is_refused(name):
    with pytest.raises(NotImplementedError, match=name):
        getattr(lazy_stack(two()), name)(inplace=True)


@pytest.mark.parametrize("kind", programs.KINDS)
def test_repr_is_that_of_the_reference(kind):
    for stack_dim in STACK_DIMS:
        expected = repr(programs.build(oracle, kind, stack_dim))
        assert repr(programs.build(ours, kind, stack_dim)) == expected


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda stack: pickle.loads(pickle.dumps(stack)),
        lambda stack: pytree.tree_map(lambda x: x.clone(), stack),
        lambda stack: stack.clone(),
    ],
)
def test_copies_are_lazy_stacks_of_copies(copied):
    stack = LazyStackedTensorDict(*two(), stack_dim_name="s")
    result = copied(stack)
    assert type(result) is LazyStackedTensorDict
    assert result.names == ["s"]
    assert (result == stack).all()
    assert result[0] is not stack[0]


def test_list_of_values_of_a_stack_is_a_pytree():
    stack = lazy_stack([TensorDict(s="u"), TensorDict(s="v")])
    assert pytree.tree_map(str.upper, stack["s"]) == ["U", "V"]


def test_pytree_with_other_batch_dimensions_is_refused():
    stack = lazy_stack([TensorDict(a=torch.zeros(3, 2), batch_size=[3]) for _ in range(2)])
    with pytest.raises(TensorDictShapeError, match="to_tensordict"):
        torch.vmap(lambda td: td + 1)(stack)


def test_stack_without_elements():
    stack = LazyStackedTensorDict(stack_dim=1, batch_size=[1, 2], device="cpu")
    assert stack.batch_size == (1, 0, 2)
    assert stack.device == torch.device("cpu")
    assert stack.unsqueeze(0).batch_size == (1, 1, 0, 2)
    assert stack[0].batch_size == (0, 2)
    assert (stack + 1).batch_size == (1, 0, 2)
    assert stack.clone().batch_size == (1, 0, 2)
    stack.append(TensorDict(batch_size=[1, 2], device="cpu"))
    assert stack.batch_size == (1, 1, 2)


# -- dense and lazy --------------------------------------------------------------------------------


def test_maybe_dense_stack_is_dense_where_keys_and_shapes_agree():
    td = TensorDict(a=torch.zeros(3), n=TensorDict(x=torch.zeros(2)))
    other = TensorDict(a=torch.ones(3), n=TensorDict(y=torch.zeros(2)))
    stacked = maybe_dense_stack([td, other])
    assert type(stacked) is TensorDict
    assert type(stacked["n"]) is LazyStackedTensorDict
    assert type(maybe_dense_stack([td, TensorDict()])) is LazyStackedTensorDict
    assert type(dense_stack_tds(lazy_stack([td, td.clone()]))) is TensorDict
    with pytest.raises(ValueError, match="dimension"):
        dense_stack_tds([td, td])


def test_densify_makes_nested_tensors_and_padding_makes_them_plain():
    tds = [
        TensorDict(a=torch.zeros(3), batch_size=[3]),
        TensorDict(a=torch.ones(4), batch_size=[4]),
    ]
    dense = lazy_stack(tds).densify(layout=torch.jagged)
    assert type(dense) is TensorDict
    assert dense.batch_size == (2, -1)
    padded = dense.to_padded_tensor(padding=-1.0, mask_key="mask")
    assert padded["a"].tolist() == [[0, 0, 0, -1], [1, 1, 1, 1]]
    assert padded["mask"].sum() == 7
    assert padded.batch_size == (2, 4)
    with pytest.raises(RuntimeError, match="ragged"):
        TensorDict(a=torch.zeros(2)).to_padded_tensor(mask_key="mask")
    with pytest.raises(NotImplementedError, match="stack dimension"):
        lazy_stack(tds, 1).densify()


def test_stack_of_differing_keys_or_shapes_names_them():
    with pytest.raises(KeyMismatchError):
        torch.stack([TensorDict(a=torch.zeros(2)), TensorDict(b=torch.zeros(2))])
    with pytest.raises(KeyMismatchError, match="only"):
        lazy_stack(two()).exclude("a").to_dict()


def test_legacy_switch_lets_stack_be_lazy():
    td = TensorDict(a=torch.zeros(3))
    assert lazy_legacy() is False
    assert lazy_legacy(allow_none=True) is None
    program = torch.compile(lambda td: torch.stack([td, td + 1]), backend="eager", fullgraph=True)
    with ours.install():
        assert type(program(td)) is TensorDict
        with set_lazy_legacy(True):
            assert type(program(td)) is LazyStackedTensorDict
        assert type(program(td)) is TensorDict
    assert type(set_lazy_legacy(True)(torch.stack)([td, td])) is LazyStackedTensorDict


def test_entries_stacked_and_unstacked():
    td = TensorDict({"a": torch.arange(6).reshape(2, 3), "n": {"x": torch.ones(2, 3)}}, [2])
    parts = unstack_entries(dict(td.items()), 0, 2, torch.Size([2]))
    assert torch.equal(parts[1]["a"], torch.tensor([3, 4, 5]))
    assert torch.equal(stacked_entry(lazy_stack(parts), ("n", "x")), td["n", "x"])
