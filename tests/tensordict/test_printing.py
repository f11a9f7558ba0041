"""``repr`` has the oracle's layout."""

from __future__ import annotations

import pytest
import torch
from oracle import example, run_both

Z = torch.zeros
DTYPES = ["float16", "bfloat16", "float64", "int8", "uint8", "bool", "complex64", "float8_e4m3fn"]

PROGRAMS = {
    "empty": lambda p: p.TensorDict(),
    "one_line": lambda p: p.TensorDict({"a": Z(3, 2), "b": {"c": Z(3)}}, [3], device="cpu"),
    "several_lines": example,
    "sorted": lambda p: p.TensorDict({"b": Z(3), "a": Z(3)}),
    "nested_with_more": lambda p: p.TensorDict({"n": p.TensorDict({"q": Z(3, 4)}, [3, 4])}, [3]),
    "nested_wide": lambda p: p.TensorDict(
        {"n": {f"verylongname{i}": Z(3, 4, 5) for i in range(6)}}, [3]
    ),
    "nested_twice_wide": lambda p: p.TensorDict(
        {"n": {"m": {f"verylongname{i}": Z(3, 4, 5) for i in range(6)}, "z": Z(3)}, "a": Z(3)}, [3]
    ),
    "dtypes": lambda p: p.TensorDict({n: Z(1, dtype=getattr(torch, n)) for n in DTYPES}),
    "other_device": lambda p: p.TensorDict({"b": Z(3, device="meta"), "c": 3j}),
    "parameter": lambda p: p.TensorDict({"a": torch.nn.Parameter(Z(3))}),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_repr_matches_oracle(program):
    run_both(lambda p: repr(program(p)))
