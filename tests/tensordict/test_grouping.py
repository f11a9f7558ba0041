"""Comparing, merging and grouping tensordicts: as the oracle."""

from __future__ import annotations

import pytest
import tensordict as reference
import torch
from oracle import example, run_both
from tensordict import utils as reference_utils

import tdcompile
from tdcompile import utils
from tdcompile.tensordict import TensorDict, assert_close, merge_tensordicts

T = torch.tensor
ONES = torch.ones
NAN = T(float("nan"))


def modules(p):
    return reference_utils if p is reference else utils


CLOSE = {
    "same": lambda p: p.assert_close(example(p), example(p)),
    "other_name": lambda p: p.assert_allclose_td(example(p), example(p)),
    "near": lambda p: p.assert_close(example(p).exclude("s"), example(p).exclude("s") + 1e-8),
    "far": lambda p: p.assert_close(p.TensorDict(a=1.0), p.TensorDict(a=2.0)),
    "far_nested": lambda p: p.assert_close(
        p.TensorDict(n={"a": 1.0}), p.TensorDict(n={"a": 2.0}), msg="hello"
    ),
    "tolerance": lambda p: p.assert_close(p.TensorDict(a=1.0), p.TensorDict(a=1.5), 0, 1),
    "other_keys": lambda p: p.assert_close(p.TensorDict(a=1), p.TensorDict(b=1)),
    "intersection": lambda p: p.assert_close(
        p.TensorDict(a=1, b=2), p.TensorDict(a=1), intersection=True
    ),
    "no_tensordict": lambda p: p.assert_close(p.TensorDict(a=1), {"a": 1}),
    "dtype": lambda p: p.assert_close(p.TensorDict(a=1), p.TensorDict(a=1.0)),
    "nan": lambda p: p.assert_close(p.TensorDict(a=NAN), p.TensorDict(a=NAN)),
    "nan_told_apart": lambda p: p.assert_close(
        p.TensorDict(a=NAN), p.TensorDict(a=NAN), equal_nan=False
    ),
    "batch_size": lambda p: p.assert_close(
        p.TensorDict({"a": ONES(2)}, [2]), p.TensorDict({"a": ONES(2)})
    ),
}  # fmt: skip


@pytest.mark.parametrize("program", CLOSE.values(), ids=CLOSE)
def test_assert_close_matches_oracle(program):
    if program in (CLOSE["far"], CLOSE["far_nested"], CLOSE["dtype"], CLOSE["nan_told_apart"]):
        for package in (tdcompile, reference):
            with pytest.raises(AssertionError, match="does not match"):
                program(package)
    else:
        run_both(program)


@pytest.mark.parametrize(
    ("one", "other"),
    [({"a": ONES(2)}, {"a": ONES(3)}), ({"a": ONES(2)}, {"a": "s"}), ({"a": {}}, {"a": ONES(2)})],
    ids=["shape", "non_tensor", "tensordict"],
)
def test_assert_close_of_entries_that_differ_in_kind_fails(one, other):
    with pytest.raises(AssertionError, match="'a'"):
        assert_close(TensorDict(one), TensorDict(other))


def test_assert_close_message_says_key_and_message():
    with pytest.raises(AssertionError, match=r"\('p', 'n', 'a'\)[\s\S]*mse = 1.0000[\s\S]*hello$"):
        assert_close(TensorDict(n={"a": 1.0}), TensorDict(n={"a": 2.0}), msg="hello", prefix="p")


def parts(p):
    return (
        p.TensorDict({"a": {"b0": 0}, "common": 0}),
        p.TensorDict({"a": {"b1": 1}, "f": 1, "common": 1}),
        p.TensorDict({"a": {"b2": 2}, "common": 2}),
    )


MERGE = {
    "first_wins": lambda p: p.merge_tensordicts(*parts(p)).to_dict(),
    "callback": lambda p: p.merge_tensordicts(
        *parts(p), callback_exist=lambda *v: torch.stack(v)
    ).to_dict(),
    "callback_by_key": lambda p: p.merge_tensordicts(
        p.TensorDict(a={"b": 1, "c": 1}),
        p.TensorDict(a={"b": 2, "c": 2}),
        callback_exist={("a", "b"): lambda *v: torch.stack(v)},
    ).to_dict(),
    "one": lambda p: p.merge_tensordicts(p.TensorDict(a=1)),
    "misfit": lambda p: p.merge_tensordicts(p.TensorDict({"a": ONES(3)}, [3]), p.TensorDict(b=1)),
    "text": lambda p: p.merge_tensordicts(
        p.TensorDict(s="a"), p.TensorDict(s="b"), callback_exist=lambda *v: 1
    ),
    "metadata": lambda p: (
        p.merge_tensordicts(
            p.TensorDict({"a": ONES(3)}, [3]), p.TensorDict({"b": ONES(3, 2)}, [3, 2])
        ).batch_size
    ),
}


@pytest.mark.parametrize("program", MERGE.values(), ids=MERGE)
def test_merge_matches_oracle(program):
    run_both(program)


def test_merge_of_a_leaf_and_a_tensordict_is_refused():
    with pytest.raises(KeyError, match="in all or in none"):
        merge_tensordicts(TensorDict(a=1), TensorDict(a={"b": 1}))


def rows(p, **kwargs):
    return p.TensorDict({"u": T([2, 0, 2, 1, 0]), "x": torch.arange(5.0)}, [5], **kwargs)


GROUPS = {
    "vector": lambda p: p.group_by(rows(p), "u"),
    "names_lock": lambda p: p.group_by(rows(p, names=["q"]).lock_(), "u")[1][0].names,
    "rows": lambda p: p.group_by(p.TensorDict({"u": T([[2, 0], [2, 0], [1, 1]])}, [3]), "u"),
    "text": lambda p: p.group_by(p.TensorDict({"s": "x", "a": ONES(2)}, [2]), "s")[0],
    "no_batch": lambda p: p.group_by(p.TensorDict(a=1), "a"),
    "absent": lambda p: p.group_by(rows(p), "q"),
    "nested": lambda p: p.group_by(p.TensorDict({"n": {"a": ONES(2)}}, [2]), "n"),
    "isin": lambda p: modules(p).isin(rows(p), rows(p)[1:2], "u"),
    "isin_dim": lambda p: modules(p).isin(
        p.TensorDict({"u": T([[2, 0, 2]])}, [1, 3]), p.TensorDict({"u": T([[2]])}, [1, 1]), "u", -1
    ),
    "isin_absent": lambda p: modules(p).isin(rows(p), rows(p), "q"),
    "isin_dims": lambda p: modules(p).isin(rows(p), p.TensorDict({"u": T(1)}), "u"),
    "isin_no_dim": lambda p: modules(p).isin(rows(p), rows(p), "u", 1),
    "unique": lambda p: modules(p).remove_duplicates(rows(p), "u"),
    "unique_indices": lambda p: modules(p).remove_duplicates(rows(p), "u", return_indices=True),
    "unique_dim": lambda p: modules(p).remove_duplicates(
        p.TensorDict({"u": T([[2, 0, 2]]), "x": T([[3, 4, 5]])}, [1, 3]), "u", 1
    ),
    "unique_absent": lambda p: modules(p).remove_duplicates(rows(p), "q"),
}


@pytest.mark.parametrize("program", GROUPS.values(), ids=GROUPS)
def test_rows_by_value_match_oracle(program):
    run_both(program)


@pytest.mark.parametrize("name", ["is_bool", "is_floating", "is_inexact", "is_integer"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float16, torch.complex64], ids=str)
def test_dtype_test_matches_oracle(name, dtype):
    run_both(lambda p: getattr(p, name)("key", torch.zeros(1, dtype=dtype)))
    run_both(lambda p: getattr(p, name)(p.TensorDict(a=torch.zeros(1, dtype=dtype))))


RIGHT = {
    "expand": lambda p: modules(p).expand_right(torch.arange(3), (3, 2)),
    "expand_same": lambda p: modules(p).expand_right(ONES(3, 1), (3, 2)),
    "expand_as": lambda p: modules(p).expand_as_right(torch.arange(3), ONES(3, 2, 2)),
    "expand_as_tensordict": lambda p: modules(p).expand_as_right(
        torch.arange(3), p.TensorDict({}, [3, 2])
    ),
    "expand_too_many": lambda p: modules(p).expand_as_right(ONES(3, 2), ONES(3)),
    "expand_misfit": lambda p: modules(p).expand_as_right(ONES(3), ONES(2, 3)),
    "expand_tensordict": lambda p: modules(p).expand_as_right(
        p.TensorDict({"a": ONES(3, 4)}, [3]), p.TensorDict({}, [3, 2])
    ),
}


@pytest.mark.parametrize("program", RIGHT.values(), ids=RIGHT)
def test_expansion_to_the_right_matches_oracle(program):
    run_both(program)
