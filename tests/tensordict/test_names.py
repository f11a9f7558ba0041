"""Names of batch dimensions, against the oracle."""

from __future__ import annotations

import differential
import pytest
import torch

from tdcompile.errors import NameConflictError
from tdcompile.tensordict import TensorDict
from tdcompile.tensordict.names import carry_names, check_names

PROGRAMS = """
    td.names = ["r", "s"]
    td.names = ("r", None)
    td.names = [None, None]
    td.names = None
    td.names = "rs"
    td.names = ["q", "p"]
    td.names = ["r"]
    td.names = ["r", "s", "t"]
    td.names = ["r", "r"]
    td.names = 5
    td["d"].names = ["p", "q", "w"]
    td["d"].names = ["p", "q", "w"]; td.names = ["r", "s"]
    td.rename_("r", "s")
    td.rename_(p="r")
    td.rename_(p="q", q="p")
    td.rename_(p="r", q="p")
    td.rename_(None)
    td.rename_(z="r")
    td.rename_(p="q")
    td.rename_("r")
    td.rename_("r", "r")
    td.rename_("r", "s", p="k")
    td.rename_()
    td.rename("r", "s")
    td.refine_names("p", "q")
    td.refine_names("r", "q")
    td.refine_names(None, "q")
    td.refine_names(..., "q")
    td.refine_names("p", ...)
    td.refine_names("p")
    td.refine_names()
    td.names = ["p", None]; td.refine_names("p", "s")
    td.names = ["p", None]; td.refine_names("r", "s")
    td.names = None; td.refine_names("r", "s")
    td.names = None; td.refine_names(..., "s")
    td.names = None; td.refine_names("r", ...)
    td.names = None; td.refine_names(..., ...)
    td.names = None; td.rename_(p="r")
    td.names[0] = "z"
"""

RESULTS = """
    td.rename("r", "s")
    td.rename(p="r")
    td.rename(None)
    td.rename(z="r")
    td.rename()
    td.rename_("r", "s")
    td.refine_names("p", "q")
"""


def lines(programs):
    return [line.strip() for line in programs.strip().split("\n")]


@pytest.mark.parametrize("locked", [False, True], ids=["unlocked", "locked"])
@pytest.mark.parametrize("program", lines(PROGRAMS))
def test_names_set_or_refined_reach_nested_as_in_oracle(program, locked):
    # Setting two dots is one more than can be told apart; we refuse it where nothing is named.
    if program.endswith("(..., ...)"):
        found = differential.outcome(differential.ours, program, (3, 4), mutates=True)
        assert isinstance(found, ValueError)
    else:
        differential.check_same(program, (3, 4), mutates=True, locked=locked)


@pytest.mark.parametrize("program", lines(RESULTS))
def test_rename_gives_what_the_oracle_gives(program):
    differential.check_same(program, (3, 4))


def test_names_are_a_new_list_each_time():
    td = TensorDict({}, batch_size=[3, 4], names=["p", "q"])
    td.names.append("r")
    assert td.names == ["p", "q"]
    assert TensorDict({}, batch_size=[3]).names == [None]


def test_rename_shares_leaves_and_leaves_nested_of_the_original_alone():
    td = differential.build(differential.ours, (3, 4))
    result = td.rename("r", "s")
    assert result["a"] is td["a"]
    assert result["n"] is not td["n"]
    assert td["n"].names == ["p", "q"]
    assert result["n"].names == ["r", "s"]


def test_failed_rename_changes_nothing():
    td = differential.build(differential.ours, (3, 4))
    with pytest.raises(NameConflictError, match=r"'q' cannot become 's'"):
        td.refine_names("p", "s")
    with pytest.raises(ValueError, match="'p' twice"):
        td.names = ["p", "p"]
    assert td.names == ["p", "q"]
    assert td["d"].names == ["p", "q", None]


@pytest.mark.parametrize(
    ("names", "error"),
    [(["p"], ValueError), (["p", "p"], ValueError), ([1, 2], TypeError), (5, TypeError)],
    ids=["too few", "twice", "numbers", "no sequence"],
)
def test_check_names_of_wrong_kind_raises(names, error):
    with pytest.raises(error):
        check_names(names, 2)


def test_check_names_stores_no_names_as_none():
    assert check_names([None, None], 2) is None
    assert check_names(["p", None], 2) == ("p", None)


def test_carry_names_keeps_names_of_further_dimensions():
    assert carry_names(("p", "q", "w"), (1, None, 0), 2) == ("q", None, "p", "w")
    assert carry_names(("p", "q"), (None,), 2) is None
    assert carry_names(None, (0,), 1) is None


def test_names_do_not_depend_on_leaves():
    td = TensorDict({"a": torch.zeros(3, 4)}, batch_size=[3, 4], names=["p", "q"])
    assert td.exclude("a")[:, None].names == td[:, None].names == ["p", None, "q"]
