"""Casts, moves and what a tensordict says about dtype and device."""

from __future__ import annotations

import pytest
import torch
from pairs import assert_same, build

import tdcompile.tensordict as ours
from tdcompile import TensorDict
from tdcompile.tensordict.casting import CASTS

QUANTISED = {"qint8", "qint32", "quint8", "quint4x2"}
PLAIN = [name for name in CASTS if name not in QUANTISED and name not in ("long", "complex32")]
NAMED = {"names": ["t", "b"], "device": "cpu"}


@pytest.mark.parametrize("name", PLAIN)
def test_cast_matches_oracle(name):
    assert_same(lambda p: getattr(build(p, torch.int64, **NAMED).lock_(), name)())


def test_cast_long_is_int64():
    assert build(ours).long().dtype is torch.int64


@pytest.mark.parametrize("name", sorted(QUANTISED))
def test_cast_quantised_raises_as_torch(name):
    with pytest.raises(RuntimeError):
        getattr(build(ours), name)()


def test_cast_same_dtype_shares_leaves():
    td = build(ours)
    result = td.float()
    assert result is not td
    assert result["n", "x"] is td["n", "x"]


@pytest.mark.parametrize("name", ["double", "int"])
def test_cast_filter_chooses_leaves(name):
    seen = []

    def wanted(path, leaf):
        seen.append(path)
        return path == ("n", "x")

    result = getattr(build(ours), name)(cast_filter=wanted)
    assert seen == [("b",), ("a",), ("n", "x")]
    assert result["n", "x"].dtype is CASTS[name]
    assert result["a"].dtype is torch.float32


@pytest.mark.parametrize(
    "call",
    [
        lambda td: td.to(torch.float64),
        lambda td: td.to(dtype=torch.int32),
        lambda td: td.to("cpu"),
        lambda td: td.to(torch.device("cpu")),
        lambda td: td.to(device="cpu", dtype=torch.float16),
        lambda td: td.to("cpu", torch.float16),
        lambda td: td.to("cpu", non_blocking=True),
        lambda td: td.to(batch_size=[3]),
        lambda td: td.to(),
        lambda td: td.to(device=None),
        lambda td: td.to("meta").is_meta,
        lambda td: td.to("cpu", batch_size=[3, 2, 9]),
        lambda td: td.to("no such device"),
        lambda td: td.cpu(),
        lambda td: td.cpu().is_cpu,
        lambda td: td.is_cpu,
        lambda td: td.is_cuda,
        lambda td: td.dtype,
        lambda td: td.is_floating_point(),
        lambda td: td.type(torch.int32),
        lambda td: td.type("torch.IntTensor"),
        lambda td: td.param_count(),
        lambda td: td.bytes(),
        lambda td: td.auto_device_(),
        lambda td: td.to("cpu").clear_device_(),
    ],
)
@pytest.mark.parametrize("locked", [False, True])
def test_to_and_properties_match_oracle(call, locked):
    assert_same(lambda p: call(build(p, names=["t", "b"]).lock_() if locked else build(p)))


def test_to_nothing_to_do_returns_self():
    td = build(ours, device="cpu")
    assert td.to("cpu") is td
    assert td.to(torch.device("cpu")) is td
    assert td.cpu() is td
    assert td.to() is td


def test_to_other_tensor_or_tensordict_takes_its_dtype():
    like = torch.ones(1, dtype=torch.float64)
    assert build(ours).to(like).dtype is torch.float64
    assert build(ours).to(TensorDict({"k": like}, [], device="cpu")).dtype is torch.float64
    assert build(ours).to(other=TensorDict({"k": like}, [], device="cpu")).is_cpu


def test_to_meta_moves_nested_leaves():
    td = build(ours).to("meta")
    assert td["n"].device.type == td["n", "x"].device.type == "meta"


def test_to_inplace_takes_the_new_leaves():
    td = build(ours)
    nested = td["n"]
    assert td.to("cpu", torch.float64, inplace=True) is td
    assert td["n"] is nested
    assert nested["x"].dtype is torch.float64
    assert td.is_cpu


@pytest.mark.parametrize("argument", [TensorDict, 1.5, [3]], ids=repr)
def test_to_unknown_argument_raises(argument):
    with pytest.raises(TypeError, match="to\\(\\) takes"):
        build(ours).to(argument)


def test_to_unknown_keyword_raises():
    with pytest.raises(TypeError, match="devise"):
        build(ours).to(devise="cpu")


def test_non_tensor_entry_passes_through():
    td = TensorDict({"s": "x", "a": torch.ones(3)}, [3])
    for result in (td.double(), td.to("cpu"), td.type(torch.int32)):
        assert result.get("s").data == "x"
        assert result.get("s") is not td.get("s")


def test_dtype_mixed_or_absent_is_none():
    assert TensorDict({"a": torch.ones(1), "b": torch.ones(1, dtype=torch.int32)}, []).dtype is None
    assert TensorDict({}, []).dtype is None


def test_sizes_count_duplicates_on_request():
    leaf = torch.ones(3)
    td = TensorDict({"a": leaf, "n": TensorDict({"x": leaf}, [3])}, [3])
    assert (td.param_count(), td.param_count(count_duplicates=False)) == (6, 3)
    assert (td.bytes(), td.bytes(count_duplicates=False)) == (24, 12)
