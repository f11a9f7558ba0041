"""Protocol methods of Python that are neither operators nor access to entries."""

from __future__ import annotations

import pytest
import torch
from oracle import run_both
from variables.checks import check, td

from tdcompile.tensordict import TensorDict

PROGRAMS = {
    "reversed": lambda p: reversed(p.TensorDict({"a": torch.ones(3)}, [3])),
    "generic_alias": lambda p: p.TensorDict[int].__args__,
    "generic_alias_base": lambda p: p.TensorDictBase[int, str].__args__,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_protocol_method_matches_oracle(program):
    run_both(program)


def test_clear_refs_forgets_what_with_would_undo():
    flat = TensorDict({"n": {"x": torch.ones(3)}}).flatten_keys()
    assert flat.clear_refs_for_compile_() is flat
    with flat as result:
        result["n.x"] = torch.zeros(3)
    assert flat["n.x"].tolist() == [0, 0, 0]


def test_clear_refs_compiled_is_one_graph():
    check(lambda td: (td + 1).unflatten_keys().clear_refs_for_compile_(), [td(), td(4)], graphs=2)
