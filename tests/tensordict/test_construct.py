"""Construction: every source and every argument, as the oracle."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest
import torch
from oracle import example, ours, run_both

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict import NonTensorData, TensorDict

Z = torch.zeros

SOURCES = {
    "nothing": lambda p: p.TensorDict(),
    "keywords": lambda p: p.TensorDict(a=Z(3), b=torch.ones(3, 2), batch_size=[3]),
    "int_batch_size": lambda p: p.TensorDict({"a": Z(3)}, 3),
    "tuple_batch_size": lambda p: p.TensorDict({"a": Z(3, 4, 1)}, (3, 4)),
    "tensordict": lambda p: p.TensorDict(example(p), [3]),
    "tensordict_without_batch_size": lambda p: p.TensorDict(example(p).exclude("s")),
    "nested_key": lambda p: p.TensorDict({("n", "x"): Z(3), "b": Z(3)}, [3]),
    "nested_dict": lambda p: p.TensorDict({"n": {"m": {"x": Z(3)}}}, [3]),
    "nested_tensordict_with_less": lambda p: p.TensorDict({"n": p.TensorDict({"x": Z(3)})}, [3]),
    "nested_tensordict_with_more": lambda p: p.TensorDict(
        {"n": p.TensorDict({"x": Z(3, 4)}, [3, 4])}, [3]
    ),
    "device": lambda p: p.TensorDict({"n": {"x": Z(3)}}, [3], device="meta"),
    "names": lambda p: p.TensorDict({"n": {"x": Z(3, 2)}}, [3, 2], names=["t", None]),
    "lock": lambda p: p.TensorDict({"n": {"x": Z(3)}}, [3], lock=True),
    "names_too_many": lambda p: p.TensorDict({}, [3], names=["a", "b"]),
    "names_twice": lambda p: p.TensorDict({}, [3, 3], names=["a", "a"]),
    "both": lambda p: p.TensorDict({"a": Z(3)}, b=Z(3)),
    "list_source": lambda p: p.TensorDict([("a", Z(3))], [3]),
    "number_source": lambda p: p.TensorDict(3),
    "leaf_misfit": lambda p: p.TensorDict({"a": Z(3)}, [4]),
    "nested_leaf_misfit": lambda p: p.TensorDict({"n": {"a": Z(3)}}, [4]),
    "string_batch_size": lambda p: p.TensorDict({"a": Z(3)}, "ab"),
    "float_batch_size": lambda p: p.TensorDict({}, [1.0]),
    "int_key": lambda p: p.TensorDict({3: Z(3)}),
}


@pytest.mark.parametrize("program", SOURCES.values(), ids=SOURCES)
def test_constructor_matches_oracle(program):
    run_both(program)


@pytest.mark.parametrize(
    "value",
    [1, 1.5, True, 1j, "s", None, b"x", [1, 2], (1, 2), [1, 2.5], [[1, 2], [3, 4]], [], {},
     {"q": 1},
     np.ones(3), np.ones(3)[0], np.array("x"), torch.Size([3]), torch.float32, range(3), object,
     [Z(2), torch.ones(2)]],
    ids=repr,
)  # fmt: skip
def test_value_becomes_what_the_oracle_makes_of_it(value):
    run_both(lambda p: p.TensorDict({"v": value}))


def test_numpy_array_shares_memory():
    array = np.ones(3)
    td = TensorDict({"a": array}, [3])
    td["a"].add_(1)
    assert array.tolist() == [2.0, 2.0, 2.0]


def test_tensors_and_tensordicts_are_stored_as_they_are():
    tensor, nested = Z(3), TensorDict({"x": Z(3)}, [3])
    td = TensorDict({"a": tensor, "n": nested}, [3])
    assert td["a"] is tensor
    assert td["n"] is nested


def test_negative_batch_size_is_refused():
    with pytest.raises(ValueError, match="ints that are not negative"):
        TensorDict({}, [-1])


FACTORIES = {
    "from_dict": lambda p: p.TensorDict.from_dict({"a": Z(3, 2), "n": {"x": Z(3, 2, 1)}}),
    "from_dict_auto": lambda p: p.TensorDict.from_dict(
        {"a": Z(3, 2), "n": {"x": Z(3, 2, 1)}}, auto_batch_size=True
    ),
    "from_dict_batch_dims": lambda p: p.TensorDict.from_dict(
        {"a": Z(3, 2), "n": {"x": Z(3, 2, 1)}}, batch_dims=1
    ),
    "from_dict_all": lambda p: p.TensorDict.from_dict(
        {"a": Z(3, 2)}, batch_size=[3], device="cpu", names=["t"]
    ),
    "from_dict_tuple": lambda p: p.TensorDict.from_dict({"a": (Z(3), {"x": 1})}),
    "from_dict_tensordict": lambda p: p.TensorDict.from_dict(example(p)),
    "fromkeys": lambda p: p.TensorDict.fromkeys(["a", ("b", "c")], 1),
    "fromkeys_default": lambda p: p.TensorDict.fromkeys(["a"]),
    "make_tensordict": lambda p: p.make_tensordict(a=Z(3, 2), b={"c": Z(3)}, auto_batch_size=True),
    "from_any_tuple": lambda p: p.TensorDict.from_any((1, {"x": 2})),
    "from_any_number": lambda p: p.TensorDict.from_any(3),
    "from_any_list": lambda p: p.TensorDict.from_any([1, 2]),
    "auto_batch_size": lambda p: example(p).auto_batch_size_(),
    "auto_batch_size_limit": lambda p: p.TensorDict(
        {"a": Z(3, 2), "n": {"x": Z(3, 2, 4)}}
    ).auto_batch_size_(1),
    "auto_batch_size_empty": lambda p: p.TensorDict({}, [3]).auto_batch_size_(),
    "auto_device": lambda p: example(p).auto_device_(),
    "auto_device_mixed": lambda p: p.TensorDict(
        {"a": Z(3), "b": Z(3, device="meta")}
    ).auto_device_(),
    "clear_device": lambda p: p.TensorDict({"n": {"x": Z(3)}}, device="cpu").clear_device_(),
}


@pytest.mark.parametrize("program", FACTORIES.values(), ids=FACTORIES)
def test_factory_matches_oracle(program):
    run_both(program)


def test_from_any_named_tuple_and_dataclass_use_field_names():
    point = collections.namedtuple("point", ["x", "y"])
    record = dataclasses.make_dataclass("Record", ["x", "y"])
    run_both(lambda p: p.TensorDict.from_any(point(1, Z(3))))
    run_both(lambda p: p.TensorDict.from_any(record(1, (Z(3), 2))))


METADATA = {
    "shape": lambda td: [td.shape, td.size(), td.size(0), td.size(-1), td.numel()],
    "dims": lambda td: [td.ndim, td.dim(), td.ndimension(), td.batch_dims],
    "size_out_of_range": lambda td: td.size(1),
    "counts": lambda td: [td.bytes(), td.param_count(), td.depth, td.sorted_keys],
    "is_empty": lambda td: td.is_empty(),
    "is_non_tensor": lambda td: [td.is_non_tensor("s"), td.is_non_tensor(("n", "x"))],
    "is_non_tensor_absent": lambda td: td.is_non_tensor("zz"),
    "entry_class": lambda td: [td.entry_class("a"), td.entry_class("zz")],
    "set_device": lambda td: setattr(td, "device", "cpu"),
}


@pytest.mark.parametrize("program", METADATA.values(), ids=METADATA)
def test_metadata_matches_oracle(program):
    run_both(lambda p: program(example(p)))


def _resized(size, **kwargs):
    def program(p):
        td = p.TensorDict({"a": Z(3, 2), "n": {"x": Z(3, 2, 4)}}, **kwargs)
        td.batch_size = size
        return td

    return program


@pytest.mark.parametrize(
    "program",
    [
        _resized([3], batch_size=[]),
        _resized([3, 2], batch_size=[3]),
        _resized([], batch_size=[3]),
        _resized([3], batch_size=[3, 2], names=["p", "q"]),
        _resized([3, 2], batch_size=[3], names=["p"]),
        _resized([4], batch_size=[3]),
        _resized([3, 2, 4], batch_size=[3]),
    ],
    ids=["grow", "grow_nested", "none", "fewer_names", "more_names", "misfit", "leaf_too_short"],
)
def test_batch_size_setter_matches_oracle(program):
    run_both(program)


def test_batch_size_setter_misfit_changes_nothing():
    td = TensorDict({"n": {"x": Z(3, 2)}, "a": Z(3, 4)}, [3])
    with pytest.raises(TensorDictShapeError, match=r'td\["a"\]'):
        td.batch_size = [3, 2]
    assert td.batch_size == td["n"].batch_size == torch.Size([3])


def test_non_tensor_entry_follows_the_batch_size():
    td = TensorDict({"s": "x"}, [])
    td.batch_size = [4]
    assert repr(td.get("s")) == repr(NonTensorData("x", [4]))


def test_params_count_once_without_duplicates():
    x = Z(6)
    td = ours.TensorDict(a=x, b=x, c=Z(2, 3), s="text")
    assert (td.param_count(), td.param_count(count_duplicates=False)) == (18, 12)
    assert (td.bytes(), td.bytes(count_duplicates=False)) == (72, 48)
