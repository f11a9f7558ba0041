"""Tuples, pytrees, schemas, structured arrays and numpy: as the oracle, eager and compiled."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch
from oracle import example, run_both
from torch.utils import _pytree as pytree

import tdcompile
from tdcompile.tensordict import NonTensorData, TensorDict

Z, ONES = torch.zeros, torch.ones
Pair = collections.namedtuple("Pair", ("a", "n"))
Point = collections.namedtuple("Point", ("x", "y"))

RECORDS = np.array(
    [("Rex", 9, 81.0), ("Fido", 3, 27.0)],
    dtype=[("name", "U12"), ("age", "i4"), ("weight", "f4")],
)
NESTED = np.zeros((2, 3), dtype=[("n", [("b", "f4"), ("c", "i8")]), ("a", "f8", (2,))])

FROM = {
    "tuple": lambda p: p.TensorDict.from_tuple((Z(3), 1, {"a": ONES(3)}, "s", [1, 2], (4,))),
    "tuple_empty": lambda p: p.TensorDict.from_tuple(()),
    "tuple_auto": lambda p: p.TensorDict.from_tuple((Z(3, 4), ONES(3)), auto_batch_size=True),
    "tuple_auto_dims": lambda p: p.TensorDict.from_tuple(
        (Z(3, 4), ONES(3, 4)), auto_batch_size=True, batch_dims=1
    ),
    "tuple_batch_size": lambda p: p.TensorDict.from_tuple((Z(3), (ONES(3),)), batch_size=[3]),
    "tuple_device": lambda p: p.TensorDict.from_tuple((Z(3),), device="meta"),
    "tuple_both": lambda p: p.TensorDict.from_tuple((Z(3),), auto_batch_size=True, batch_size=[3]),
    "tuple_misfit": lambda p: p.TensorDict.from_tuple((Z(3),), batch_size=[4]),
    "namedtuple": lambda p: p.TensorDict.from_namedtuple(Pair(Z(3), Point(1, {"z": ONES(2)}))),
    "namedtuple_auto": lambda p: p.TensorDict.from_namedtuple(
        Pair(Z(3), Point(ONES(3), Z(3, 2))), auto_batch_size=True
    ),
    "namedtuple_return_type": lambda p: p.TensorDict.from_namedtuple(
        torch.tensor([2, 0, 1]).max(0)
    ).select("indices", "values"),
    "namedtuple_mapping": lambda p: p.TensorDict.from_namedtuple({"a": 1}),
    "namedtuple_round": lambda p: p.TensorDict.from_namedtuple(
        example(p).to_namedtuple(), batch_size=[3]
    ),
    "schema": lambda p: p.TensorDict.from_schema(
        {"a": ([2], torch.int8), ("n", "b"): ([], torch.float32)}, batch_size=[3]
    ),
    "schema_device": lambda p: p.TensorDict.from_schema({"a": ([2], torch.int8)}, device="meta"),
    "schema_unknown_storage": lambda p: p.TensorDict.from_schema({}, storage="paper"),
    "dict_instance": lambda p: example(p).from_dict_instance({"a": Z(3), "n": {"x": ONES(3)}}),
    "dict_instance_auto": lambda p: example(p).from_dict_instance(
        {"a": Z(3), "n": {"x": ONES(3)}, "m": {"q": ONES(3, 2)}}, auto_batch_size=True
    ),
    "dict_instance_names": lambda p: example(p).from_dict_instance(
        {"a": Z(3)}, batch_size=[3], names=["q"]
    ),
    "dict_instance_both": lambda p: example(p).from_dict_instance(
        {"a": Z(3)}, batch_size=[3], batch_dims=1
    ),
    "dict_both": lambda p: p.TensorDict.from_dict({"a": Z(3)}, batch_size=[3], batch_dims=1),
}


@pytest.mark.parametrize("program", FROM.values(), ids=FROM)
def test_construction_from_plain_data_matches_oracle(program):
    run_both(program)


PYTREES = {
    "dict_of_list_and_tuple": lambda: {"a": [Z(2), ONES(2)], "b": (1, 2.0)},
    "nested_lists": lambda: [[ONES(3)], [], (), {}],
    "any_keys": lambda: {3: Z(1), "s": 1, Pair: ONES(2)},
    "ordered": lambda: collections.OrderedDict(z=ONES(2), a=Z(1)),
    "namedtuple": lambda: Pair(ONES(2), Point(1, 2)),
    "number": lambda: 3,
    "array": lambda: [np.ones(2)],
}


def plain(tree):
    """A pytree with lists in place of tensors."""
    return pytree.tree_map(lambda leaf: torch.as_tensor(leaf).tolist(), tree)


@pytest.mark.parametrize("make", PYTREES.values(), ids=PYTREES)
def test_pytree_comes_back_from_a_tensordict(make):
    found = TensorDict.from_pytree(make())
    back = found.to_pytree() if isinstance(found, TensorDict) else found
    assert plain(back) == plain(make())
    assert type(back) is type(make()) or isinstance(back, torch.Tensor)


@pytest.mark.parametrize("name", ["dict_of_list_and_tuple", "nested_lists", "array", "number"])
@pytest.mark.parametrize("kwargs", [{}, {"auto_batch_size": True}], ids=["", "auto"])
def test_pytree_becomes_the_tensordict_of_the_oracle(name, kwargs):
    run_both(lambda p: p.TensorDict.from_pytree(PYTREES[name](), **kwargs))


HARD_PYTREES = {
    "tuple_key": lambda: {("u", "v"): ONES(2)},
    "reserved_keys": lambda: {"_pytree_type": ONES(1), "<NON_NESTED>": Z(1)},
    "list_in_namedtuple": lambda: Pair(ONES(2), [1, {"q": (Z(1),)}]),
}


@pytest.mark.parametrize("make", HARD_PYTREES.values(), ids=HARD_PYTREES)
def test_pytree_that_the_oracle_changes_comes_back_unchanged(make):
    assert plain(TensorDict.from_pytree(make()).to_pytree()) == plain(make())


def test_pytree_return_type_and_defaultdict_come_back():
    found = TensorDict.from_pytree(
        (torch.tensor([2, 5]).max(0), collections.defaultdict(list, a=1))
    )
    result = found.to_pytree()
    assert result[0].indices == 1
    assert type(result[1]) is collections.defaultdict
    assert result[1]["a"] == 1


def test_pytree_keeps_tensors_and_tensordicts_as_they_are():
    leaf, td = Z(3), TensorDict({"x": Z(3)}, [3])
    result = TensorDict.from_pytree([leaf, td]).to_pytree()
    assert result[0] is leaf
    assert result[1] is td
    assert TensorDict.from_pytree(td) is td
    assert td.to_pytree() is td


@pytest.mark.parametrize("leaf", [None, "s", 1j, {1}], ids=repr)
def test_pytree_with_another_leaf_is_refused(leaf):
    with pytest.raises(NotImplementedError, match=r"at \['a', '0'\]"):
        TensorDict.from_pytree({"a": [leaf]})


def rows(p):
    nested = p.TensorDict({"c": torch.arange(4).view(2, 2)}, [2, 2])
    return p.TensorDict({"a": torch.arange(4).view(2, 2), "b": nested, "s": "x", "q": None}, [2])


LISTS = {
    "dense": lambda p: p.TensorDict.from_list([{"a": Z(3)}, {"a": ONES(3)}]),
    "auto": lambda p: p.TensorDict.from_list([{"a": Z(3)}] * 2, auto_batch_size=True, names="ab"),
    "batch_size": lambda p: p.TensorDict.from_list([{"a": Z(3)}] * 2, batch_size=[2, 3]),
    "names": lambda p: p.TensorDict.from_list([{"a": Z(3)}] * 2, batch_size=[2, 3], names="ab"),
    "names_unused": lambda p: p.TensorDict.from_list([{"a": Z(3)}] * 2, names=["a", "b"]),
    "batch_dims": lambda p: p.TensorDict.from_list([{"a": Z(3, 4)}] * 2, batch_dims=2),
    "ragged": lambda p: p.TensorDict.from_list([{"a": Z(3)}, {"a": Z(4)}]).batch_size,
    "ragged_type": lambda p: type(p.TensorDict.from_list([{"a": Z(3)}, {"b": Z(4)}])).__name__,
    "ragged_dense": lambda p: p.TensorDict.from_list([{"a": Z(3)}, {"a": Z(4)}], lazy=False),
    "lazy": lambda p: type(p.TensorDict.from_list([{"a": Z(3)}] * 2, lazy=True)).__name__,
    "tensordicts": lambda p: p.TensorDict.from_list([example(p).select("a", "n")] * 2),
    "device": lambda p: p.TensorDict.from_list([{"a": Z(3)}] * 2, device="meta"),
    "nothing": lambda p: p.TensorDict.from_list([]),
    "length": lambda p: p.TensorDict.from_list([{"a": Z(3)}], batch_size=[2, 3]),
    "both": lambda p: p.TensorDict.from_list([{"a": Z(3)}] * 2, batch_size=[2], batch_dims=1),
    "numbers": lambda p: p.TensorDict.from_list([1, 2]),
    "text": lambda p: p.TensorDict.from_list([{"a": "x"}, {"a": "s"}])["a"],
}


@pytest.mark.parametrize("program", LISTS.values(), ids=LISTS)
def test_list_becomes_the_stack_of_the_oracle(program):
    run_both(program)


def test_linked_list_of_rows_writes_to_the_tensordict():
    td = TensorDict({"a": torch.arange(3)}, [3])
    listed = td.tolist(as_linked_list=True)
    listed[1] = {"a": torch.tensor(7)}
    assert td["a"].tolist() == [0, 7, 2]
    assert listed == [{"a": 0}, {"a": 7}, {"a": 2}]


def test_text_of_a_struct_array_belongs_to_its_row():
    td = TensorDict.from_struct_array(RECORDS)
    assert td["name"] == ["Rex", "Fido"]
    assert td[1]["name"] == "Fido"


def values(p):
    return torch.stack([p.TensorDict(s="a", x=1), p.TensorDict(s="b", x=2)])


TO = {
    "stack_numpy": lambda p: repr(list(values(p).numpy()["s"])),
    "stack_namedtuple": lambda p: list(values(p).to_namedtuple().s),
    "stack_struct": lambda p: values(p).to_struct_array().tolist(),
    "tolist": lambda p: rows(p).tolist(),
    "tolist_tensors": lambda p: rows(p).tolist(convert_tensors=True),
    "tolist_numpy": lambda p: repr(rows(p).tolist(convert_tensors="numpy")),
    "tolist_first": lambda p: rows(p).tolist(tolist_first=True, convert_tensors=True),
    "tolist_first_below": lambda p: p.TensorDict(a=1, b=rows(p).exclude("b")).tolist(
        tolist_first=True
    ),
    "tolist_nodes": lambda p: rows(p).tolist(convert_nodes=False),
    "tolist_node": lambda p: p.TensorDict(a=1).tolist(convert_nodes=False),
    "tolist_both": lambda p: rows(p).tolist(convert_nodes=False, convert_tensors=True),
    "to_dict_first": lambda p: rows(p).to_dict(tolist_first=True),
    "namedtuple": lambda p: example(p).to_namedtuple(),
    "namedtuple_fields": lambda p: example(p).to_namedtuple()._fields,
    "namedtuple_class": lambda p: type(example(p).select("a", "n").to_namedtuple(Pair)).__name__,
    "namedtuple_class_nested": lambda p: repr(
        p.TensorDict(a=1, n=p.TensorDict(a=2, n="s")).to_namedtuple(Pair)
    ),
    "namedtuple_class_misfit": lambda p: example(p).to_namedtuple(Pair),
    "namedtuple_bad_key": lambda p: p.TensorDict({"a b": Z(1)}).to_namedtuple(),
    "namedtuple_none": lambda p: p.TensorDict({"a": None, "b": 1}).to_namedtuple(),
    "namedtuple_empty": lambda p: p.TensorDict().to_namedtuple(),
    "numpy": lambda p: repr(example(p).numpy()),
    "numpy_none": lambda p: example(p).set("q", None).select("q").numpy(),
    "numpy_gradient": lambda p: p.TensorDict(a=ONES(2, requires_grad=True)).numpy(),
    "numpy_meta": lambda p: p.TensorDict(a=ONES(2), device="meta").numpy(),
    "as_tensor": lambda p: example(p).as_tensor(),
    "as_tensor_locked": lambda p: example(p).lock_().as_tensor(),
    "data_ptr_keys": lambda p: sorted(example(p).data_ptr().keys(True, True), key=str),
    "data_ptr_device": lambda p: example(p).data_ptr().device,
    "data_ptr_batch_size": lambda p: example(p).data_ptr()["n"].batch_size,
    "struct_dtype": lambda p: example(p).to_struct_array().dtype,
    "struct_values": lambda p: repr(example(p).to_struct_array()),
    "struct_long_text": lambda p: p.TensorDict(a=1, b="a very long text").to_struct_array().dtype,
    "struct_other_value": lambda p: p.TensorDict(a=1, b=None).to_struct_array().tolist(),
    "struct_bfloat16": lambda p: p.TensorDict(a=Z(2, dtype=torch.bfloat16)).to_struct_array(),
}


@pytest.mark.parametrize("program", TO.values(), ids=TO)
def test_conversion_to_plain_data_matches_oracle(program):
    run_both(program)


def test_numpy_shares_memory():
    td = TensorDict({"n": {"x": Z(2)}})
    td.numpy()["n"]["x"][0] = 5
    assert td["n", "x"].tolist() == [5, 0]


def test_data_ptr_tells_what_is_shared():
    td = TensorDict({"a": Z(4), "n": {"x": ONES(4)}}, [4])
    assert (td.data_ptr() == td.unsqueeze(0).data_ptr()).all()
    assert not (td.data_ptr() == td[1:].data_ptr()).any()
    assert (td.data_ptr(storage=True) == td[1:].data_ptr(storage=True)).all()


STRUCT = {
    "plain": (RECORDS, {}),
    "no_shape": (np.array(("Rex", 9, 81.0), dtype=RECORDS.dtype), {}),
    "nested": (NESTED, {}),
    "nested_auto": (NESTED, {"auto_batch_size": True}),
    "nested_auto_dims": (NESTED, {"auto_batch_size": True, "batch_dims": 1}),
    "nested_batch_size": (NESTED, {"batch_size": [2]}),
    "packed": (np.zeros(3, dtype=[("a", "i8"), ("b", "f4")]), {}),
    "both": (NESTED, {"auto_batch_size": True, "batch_size": [2]}),
    "no_fields": (np.zeros(3), {}),
}


def numbers(td):
    return td.exclude("name")


@pytest.mark.parametrize("name", STRUCT)
def test_struct_array_becomes_the_tensordict_of_the_oracle(name):
    array, kwargs = STRUCT[name]
    run_both(lambda p: numbers(p.TensorDict.from_struct_array(array, **kwargs)))


@pytest.mark.parametrize("name", ["plain", "no_shape", "nested", "packed"])
def test_struct_array_comes_back(name):
    array, _ = STRUCT[name]
    back = TensorDict.from_struct_array(array).to_struct_array()
    assert back.shape == array.shape
    assert [back.dtype[field].kind for field in back.dtype.names] == [
        array.dtype[field].kind for field in array.dtype.names
    ]
    assert (back == array).all()


def test_struct_array_shares_memory_where_torch_can_view_it():
    records = RECORDS.copy()
    td = TensorDict.from_struct_array(records)
    records["age"] += 1
    assert td["age"].tolist() == [10, 4]


def test_struct_array_moves_to_a_device():
    assert TensorDict.from_struct_array(NESTED, device="meta")["n", "b"].device.type == "meta"


def test_struct_array_without_entries_has_the_batch_size():
    assert TensorDict({}, [2]).to_struct_array().shape == (2,)


COMPILED = {
    "to_namedtuple": lambda td: td.to_namedtuple().a + 1,
    "to_namedtuple_nested": lambda td: td.to_namedtuple().n.x * 2,
    "to_namedtuple_class": lambda td: td.to_namedtuple(Pair).a + 1,
    "from_namedtuple": lambda td: TensorDict.from_namedtuple(Pair(td["a"] + 1, td["n"])),
    "from_tuple": lambda td: TensorDict.from_tuple((td["a"] + 1, (td["n", "x"], 2))),
    "from_max": lambda td: TensorDict.from_namedtuple(td["a"].max(0)),
    "pytree": lambda td: TensorDict.from_pytree({"u": [td["a"] + 1, (td["n"],)]}).to_pytree(),
    "from_schema": lambda td: td["a"] + TensorDict.from_schema({"a": ([3, 2], td["a"].dtype)})["a"],
    "from_dict_instance": lambda td: td.from_dict_instance({"a": td["a"] + 1, "n": {"x": td["a"]}}),
    "as_tensor": lambda td: td.as_tensor() + 1,
}  # fmt: skip


@pytest.mark.parametrize("program", COMPILED.values(), ids=COMPILED)
def test_conversion_compiled_is_one_graph_and_agrees_with_eager(program):
    td = TensorDict({"a": torch.arange(6.0).reshape(3, 2), "n": {"x": ONES(3)}}, [3])
    torch._dynamo.reset()
    with tdcompile.install():
        found = torch.compile(program, backend="eager", fullgraph=True)(td)
    expected = program(td)
    flat, spec = pytree.tree_flatten(expected)
    found_flat, found_spec = pytree.tree_flatten(found)
    assert found_spec == spec
    assert [leaf.tolist() for leaf in found_flat] == [leaf.tolist() for leaf in flat]


@pytest.mark.parametrize("names", [("a",), ("a", "s")], ids=len)
def test_namedtuple_of_a_compiled_function_is_of_the_same_class_as_in_eager(names):
    td = TensorDict({"a": Z(3), "s": NonTensorData("x", [3])}, [3]).select(*names)
    torch._dynamo.reset()
    with tdcompile.install():
        found = torch.compile(lambda td: (td + 1).to_namedtuple(), backend="eager", fullgraph=True)(
            td
        )
    expected = (td + 1).to_namedtuple()
    assert (type(found).__name__, found._fields) == (type(expected).__name__, expected._fields)
    assert found.a.tolist() == [1, 1, 1]
