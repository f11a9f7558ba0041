"""Padding rows, padding and stacking samples: as the oracle, eager and compiled."""

from __future__ import annotations

import pytest
import torch
from oracle import run_both

import tdcompile
from tdcompile.tensordict import TensorDict, pad_sequence, unpad_sequence

ONES = torch.ones


def wide(p, **kwargs):
    nested = p.TensorDict({"y": torch.arange(12).reshape(3, 4)}, [3, 4])
    return p.TensorDict({"a": ONES(3, 4, 2), "n": nested}, [3, 4], **kwargs)


PAD = {
    "first": lambda p: wide(p).pad([1, 0]),
    "both": lambda p: wide(p).pad([1, 0, 0, 2], value=5),
    "function": lambda p: p.pad(wide(p), [0, 1], 2.0),
    "names": lambda p: wide(p, names=["s", "t"]).pad([0, 1]),
    "nothing": lambda p: wide(p).pad([]),
    "odd": lambda p: wide(p).pad([1]),
    "too_long": lambda p: wide(p).pad([1] * 6),
    "cut": lambda p: wide(p).pad([-1, 0, 1, -2]),
    "cut_too_much": lambda p: wide(p).pad([-4, 0]),
    "nested_with_more_dims": lambda p: p.TensorDict(
        {"n": p.TensorDict({"y": ONES(3, 4)}, [3, 4])}, [3]
    ).pad([1, 1]),
    "bool": lambda p: p.TensorDict({"a": torch.zeros(2, dtype=torch.bool)}, [2]).pad([1, 0], 1.0),
    "int": lambda p: p.TensorDict({"a": torch.zeros(2, dtype=torch.int)}, [2]).pad([1, 0], 1.5),
    "in_place": lambda p: wide(p).pad([1, 2], inplace=True),
    "in_place_unsafe": lambda p: wide(p).pad([0, 0, 1, 2], inplace=True, safe=False),
    "in_place_locked": lambda p: wide(p).lock_().pad([1, 2], inplace=True),
    "locked": lambda p: wide(p).lock_().pad([1, 2]),
}


@pytest.mark.parametrize("program", PAD.values(), ids=PAD)
def test_pad_matches_oracle(program):
    run_both(program)


def test_pad_in_place_keeps_the_tensordict_and_its_nested_ones():
    td = wide(tdcompile)
    nested = td["n"]
    assert td.pad([1, 0], inplace=True) is td
    assert td["n"] is nested
    assert nested.batch_size == (4, 4)


def ragged(p, *lengths, **kwargs):
    """Samples ``{"a": (length, 8), "n": {"x": (6, 8)}}`` without batch dimensions."""
    return [
        p.TensorDict({"a": ONES(n, 8), "n": {"x": torch.zeros(6, 8)}}, **kwargs) for n in lengths
    ]


def batched(p, *lengths, **kwargs):
    """Samples ``{"a": (length, 2), "n": {"x": (length,)}}`` of batch size ``(length,)``."""
    return [
        p.TensorDict({"a": ONES(n, 2), "n": {"x": torch.arange(n)}}, [n], **kwargs) for n in lengths
    ]


def inner(p, *lengths):
    """Samples of batch size (3,) whose last dimension differs."""
    return [p.TensorDict({"a": ONES(3, n), "b": ONES(3, 1, n)}, [3]) for n in lengths]


SEQUENCES = {
    "feature_dim": lambda p: p.pad_sequence(ragged(p, 3, 5)),
    "feature_dim_mask": lambda p: p.pad_sequence(ragged(p, 3, 5), return_mask=True),
    "mask_key": lambda p: p.pad_sequence(ragged(p, 3, 5), return_mask=("m", "k")),
    "batch_dim_mask": lambda p: p.pad_sequence(batched(p, 2, 4), return_mask=True),
    "batch_dim_left": lambda p: p.pad_sequence(
        batched(p, 2, 4, 1), padding_side="left", return_mask=True
    ),
    "negative_dim": lambda p: p.pad_sequence(ragged(p, 3, 5), pad_dim=-2),
    "negative_feature_dim": lambda p: p.pad_sequence(inner(p, 1, 2), pad_dim=-1, return_mask=True),
    "second_dim": lambda p: p.pad_sequence(
        [p.TensorDict({"a": ONES(3, n)}, [3]) for n in (1, 2)], pad_dim=1, return_mask=True
    ),
    "second_batch_dim": lambda p: p.pad_sequence(
        [wide(p), wide(p).pad([0, 0, 0, 2])], pad_dim=1, return_mask=True
    ),
    "deeper_feature_dim": lambda p: p.pad_sequence(
        [p.TensorDict({"a": ONES(3, 2, n)}, [3]) for n in (1, 2)], pad_dim=2, return_mask=True
    ),
    "value": lambda p: p.pad_sequence(batched(p, 2, 4), padding_value=7),
    "values": lambda p: p.pad_sequence(
        batched(p, 2, 4), padding_value={"a": 7, ("n", "x"): -1}, return_mask=True
    ),
    "values_unknown": lambda p: p.pad_sequence(batched(p, 2, 4), padding_value={"q": 7}),
    "nothing": lambda p: p.pad_sequence([]),
    "misfit": lambda p: p.pad_sequence(ragged(p, 3, 5), pad_dim=1),
    "no_such_dim": lambda p: p.pad_sequence(ragged(p, 3, 5), pad_dim=5),
    "no_such_dim_of_one": lambda p: p.pad_sequence(batched(p, 2, 4), pad_dim=1),
    "bad_side": lambda p: p.pad_sequence(ragged(p, 3, 5), padding_side="up"),
    "mixed_dims": lambda p: p.pad_sequence(batched(p, 2, 4), pad_dim=-1),
    "mixed_dims_that_fit": lambda p: p.pad_sequence(
        [p.TensorDict({"a": ONES(4, n), "b": ONES(4)}, [4]) for n in (1, 3)], pad_dim=-1
    ),
    "out": lambda p: p.pad_sequence(ragged(p, 3, 5), out=p.pad_sequence(ragged(p, 5, 1)) * 0),
    "device": lambda p: p.pad_sequence(ragged(p, 3, 5, device="cpu"), return_mask=True),
    "single": lambda p: p.pad_sequence(ragged(p, 3), return_mask=True),
}


def unordered(td):
    """A tensordict as nested dictionaries, whose order does not count."""
    if isinstance(td, torch.Tensor):
        return td
    return tuple(td.batch_size), td.device, {key: unordered(td.get(key)) for key in td.keys()}  # noqa: SIM118


@pytest.mark.parametrize("program", SEQUENCES.values(), ids=SEQUENCES)
def test_pad_sequence_matches_oracle(program):
    run_both(lambda p: unordered(program(p)))


def test_pad_sequence_keeps_the_order_of_keys_and_common_names():
    padded = pad_sequence(batched(tdcompile, 2, 4, names=["time"]), return_mask=True)
    assert list(padded.keys()) == ["a", "n", "masks"]
    assert padded.names == [None, "time"]


def test_pad_sequence_with_other_keys_is_refused():
    with pytest.raises(KeyError, match="found"):
        pad_sequence([TensorDict(a=ONES(2)), TensorDict(b=ONES(2))])


def lists(stack):
    leaves = [{key: td[key].tolist() for key in td.keys(True, True)} for td in stack]
    return [tuple(td.batch_size) for td in stack], leaves


UNPAD = {
    "batch_dim": lambda p: p.pad_sequence(batched(p, 2, 4, 0), return_mask=True),
    "batch_dim_left": lambda p: p.pad_sequence(
        batched(p, 2, 4), return_mask=True, padding_side="left"
    ),
    "feature_dim": lambda p: p.pad_sequence(ragged(p, 1, 3), return_mask=True),
    "no_masks": lambda p: p.pad_sequence(ragged(p, 1, 3)),
    "no_batch": lambda p: p.TensorDict(a=1),
}


@pytest.mark.parametrize("program", UNPAD.values(), ids=UNPAD)
def test_unpad_sequence_matches_oracle(program):
    run_both(lambda p: lists(p.unpad_sequence(program(p))))


MASKS = {
    "vector": [[1, 0, 0, 0], [1, 1, 1, 1]],
    "gap": [[1, 0, 1, 0], [1, 1, 1, 1]],
    "rows": [[1, 0, 1, 0]],
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_unpad_sequence_by_one_mask_matches_oracle(mask):
    mask = torch.tensor(mask, dtype=torch.bool)
    run_both(lambda p: lists(p.unpad_sequence(p.pad_sequence(batched(p, 2, 4)), mask)))


@pytest.mark.parametrize("pad_dim", [-1, 1], ids=str)
def test_unpad_sequence_over_the_last_dim_matches_oracle(pad_dim):
    def program(p):
        samples = [p.TensorDict({"a": ONES(3, n)}, [3]) for n in (1, 2)]
        padded = p.pad_sequence(samples, pad_dim=pad_dim, return_mask=True)
        return lists(p.unpad_sequence(padded, pad_dim=pad_dim))

    run_both(program)


def test_unpad_sequence_gives_views_and_cuts_values_that_are_no_tensors():
    samples = [TensorDict({"a": ONES(n), "s": "k"}, [n]) for n in (2, 4)]
    padded = pad_sequence(samples, return_mask=True)
    assert padded.get("s").tolist() == [["k", "k", None, None], ["k"] * 4]
    first = unpad_sequence(padded)[0]
    assert first["s"] == ["k", "k"]
    assert first["a"].untyped_storage().data_ptr() == padded["a"].untyped_storage().data_ptr()


NON_TENSOR = {
    "one": lambda p: p.TensorDict({"s": "x"}, [3]).pad([1, 2]).get("s").tolist(),
    "stack": lambda p: torch.stack([p.TensorDict(s="a"), p.TensorDict(s="b")]).pad([1, 0])["s"],
    "cut": lambda p: torch.stack([p.TensorDict(s="a"), p.TensorDict(s="b")]).pad([-1, 1])["s"],
    "two_dims": lambda p: p.TensorDict({"s": "x"}, [1, 2]).pad([0, 1, 1, 0]).get("s").tolist(),
    "in_place": lambda p: p.TensorDict({"s": "x"}, [1]).pad([0, 1], inplace=True)["s"],
}


@pytest.mark.parametrize("program", NON_TENSOR.values(), ids=NON_TENSOR)
def test_pad_of_values_that_are_no_tensors_matches_oracle(program):
    run_both(program)


COMPILED = {
    "pad": lambda td: td.pad([1, 0, 0, 2], value=3),
    "pad_in_place": lambda td: (td + 0).pad([1, 0], inplace=True),
    "pad_sequence": lambda td: pad_sequence([td, td.pad([0, 2])], return_mask=True),
    "pad_sequence_left": lambda td: pad_sequence(
        [td, td.pad([0, 0, 0, 2])], pad_dim=1, padding_value={"a": 5}, padding_side="left"
    ),
}


@pytest.mark.parametrize("program", COMPILED.values(), ids=COMPILED)
def test_padding_compiled_is_one_graph_and_agrees_with_eager(program):
    td = wide(tdcompile)
    torch._dynamo.reset()
    with tdcompile.install():
        found = torch.compile(program, backend="eager", fullgraph=True)(td)
    expected = program(td)
    assert found.batch_size == expected.batch_size
    assert found.keys(True, True) == expected.keys(True, True)
    assert (found == expected).all()
