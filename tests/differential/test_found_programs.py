"""Programs on which compiled and eager once disagreed, shortened, and inputs that show it."""

from __future__ import annotations

import pytest

from tests.differential.compare import Case, disagreement, reproducer
from tests.differential.inputs import Spec
from tests.differential.programs import Program

_TWO = (Spec(), Spec(seed=1))

#: What went wrong -> steps, result, inputs.
FOUND: dict[str, tuple[tuple[str, ...], str, tuple[Spec, ...]]] = {
    "cleared dictionary lost entries that were put back": (
        ('a.select("a", "b", strict=False, inplace=True)',),
        "None",
        _TWO,
    ),
    "arithmetic kept the lock of a nested tensordict": (
        ("p = 0.5 - a", "q = a.exp()"),
        "p, q",
        (Spec(), Spec(b="shares n", locked="b")),
    ),
    "copy lost an earlier edit of a nested tensordict": (
        ('del p["n"]["x"]', 'p["n"]["late"] = w', "p = p.replace({'c': w})"),
        "p, q",
        _TWO,
    ),
    "copy took over a later edit of a nested tensordict": (
        ("p = p.clone(False)", "a.update(q)", 'p["n"].set("x", torch.ones(p.batch_size))'),
        "p, a",
        _TWO,
    ),
    "copy took over a later edit through an alias": (
        ("q = a.replace(a=w)", 'b.set(("n", "x"), w)'),
        "p, q",
        (Spec(), Spec(b="same"), Spec(b="shares n")),
    ),
    "identity of two inputs was not guarded": (
        (
            'out.append(a["n"] is b["n"])',
            "out.append(a is b)",
            'out.append(q.exclude("a")["n"] is a["n"])',
        ),
        "out",
        (Spec(), Spec(b="shares n"), Spec(b="same"), Spec()),
    ),
    "views of items and values were snapshots": (
        (
            "k, i, x = a.keys(), a.items(), a.values()",
            'a["a"] = w',
            'a.pop("b")',
            'a["late"] = w',
            "out.append((list(k), list(i), list(x), len(k)))",
        ),
        "out",
        _TWO,
    ),
    "an absent key in the reason of a recompile raised": (
        ("out.append(b.is_empty())", "p.exp_()"),
        "out",
        (Spec(), Spec(shared=(("a", "b"),), b="nested")),
    ),
    "copy took an edited nested tensordict from another key as it was before": (
        ('a["n"]["late"] = w', "p = a.clone(False)", "q = b.copy()"),
        "p, q",
        (Spec(shared=(("m", "n"),)), Spec(b="shares n"), Spec()),
    ),
    "text in a list ended the trace": (
        ("a['list'] = ['x', 'y']", "a['pair'] = (1, 'x')"),
        "a",
        _TWO,
    ),
    "copy after edits of two inputs did not end": (
        ('a["late"] = w', 'b["n"]["late"] = w', "p = a.copy()", "q = b.copy()"),
        "p, q",
        (Spec(), Spec(b="shares n"), Spec(b="same"), Spec(shared=(("m", "n"),))),
    ),
    "selection of a shallow copy copied its nested tensordicts again": (
        ("p = a.copy()", 'q = p.exclude("a")', 'q["n"]["late"] = w', 'out.append(p["n"])'),
        "p, q, out",
        _TWO,
    ),
    "children of a tensordict that was locked again were not held": (
        ("a.unlock_()", 'a["c"] = b.copy()', 'b["z"] = a.pop("n")', "a.lock_()", "v = w + 1"),
        "p, q",
        (Spec(locked="a"), Spec(), Spec(locked="a", b="shares n")),
    ),
}


@pytest.mark.parametrize("fault", FOUND)
@pytest.mark.parametrize("fullgraph", [True, False])
def test_found_program_agrees_with_eager(fault, fullgraph):
    steps, result, specs = FOUND[fault]
    case = Case(Program(steps, result), specs, fullgraph=fullgraph)
    found = disagreement(case)
    assert found is None, reproducer(case, found)


@pytest.mark.parametrize(
    ("steps", "result"),
    [
        pytest.param(("out.append((a == b).all())",), "out", id="truth of all"),
        pytest.param(("out.append((a == b).any())",), "out", id="truth of any"),
        pytest.param(
            ('out = [k for k, x in a.items() if k != "a" or a.rename_key_("b", "late") is a]',),
            "out, p",
            id="key renamed while items were iterated",
        ),
        pytest.param(
            ('a["z"] = a', 'a["z"] = b.copy()'), "p", id="tensordict in itself for a while"
        ),
    ],
)
def test_program_without_a_full_graph_agrees_with_eager(steps, result):
    specs = (Spec(), Spec(b="same"), Spec(seed=3))
    assert disagreement(Case(Program(steps, result), specs)) is None
