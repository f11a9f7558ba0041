"""The coverage command: what it counts, what it prints and how it exits."""

from __future__ import annotations

import pytest
import tensordict as reference

from tdcompile import coverage
from tdcompile.api_names import SECTIONS


def holder_of(title):
    holder = reference
    for part in () if title == "package level" else title.split("."):
        holder = getattr(holder, part)
    return holder


@pytest.mark.parametrize("title", SECTIONS)
def test_listed_names_are_names_of_the_reference(title):
    assert [name for name in SECTIONS[title] if not hasattr(holder_of(title), name)] == []


def test_every_public_name_of_the_reference_is_listed():
    public = [
        name
        for name in dir(reference)
        if not name.startswith("_") and name not in ("version", "_C")
    ]
    assert set(public) - set(SECTIONS["package level"]) == set()
    methods = [name for name in dir(reference.TensorDict) if not name.startswith("_")]
    assert set(methods) == {n for n in SECTIONS["TensorDict"] if not n.startswith("_")}


def test_sections_split_each_list_of_names():
    for section in coverage.sections():
        names = section.present + section.missing + section.later
        assert sorted(names) == sorted(SECTIONS[section.title])


def test_connectors_are_later_and_what_is_here_is_present():
    (section,) = [s for s in coverage.sections() if s.title == "TensorDict"]
    assert {"to_h5", "from_csv", "to_store", "to_mds"} <= set(section.later)
    assert {"apply", "__getitem__", "update_"} <= set(section.present)


@pytest.mark.parametrize(("missing", "code"), [((), 0), (("pad",), 1)], ids=["none", "one"])
def test_command_exits_by_what_is_missing(missing, code, monkeypatch, capsys):
    rows = [coverage.Section("TensorDict", ("get", "set"), missing, ("to_h5",))]
    monkeypatch.setattr(coverage, "sections", lambda: rows)
    assert coverage.main() == code
    text = capsys.readouterr().out.splitlines()
    assert text[1].split() == ["TensorDict", "2", str(len(missing)), "1"]
    assert text[-2:] == ["later, TensorDict:", "  to_h5"]


def test_later_names_that_are_here_count_as_present(monkeypatch):
    monkeypatch.setattr(coverage.tdcompile, "to_arrow", print, raising=False)
    (section,) = [s for s in coverage.sections() if s.title == "package level"]
    assert "to_arrow" in section.present
    assert "to_arrow" not in section.later
