"""Each row of the page of differences, run on both packages."""

from __future__ import annotations

import builtins

import differences
import pytest
from differences import DIFFERENCES, PACKAGES, outcome

from tdcompile import errors


def name_of(row):
    return row.code.split("\n")[-1].replace(" ", "")


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("row", DIFFERENCES, ids=name_of)
def test_difference_gives_what_the_page_says(row, package):
    assert outcome(row.code, PACKAGES[package]) == getattr(row, package)


@pytest.mark.parametrize("row", DIFFERENCES, ids=name_of)
def test_difference_is_one_and_fits_a_table(row):
    assert row.reference != row.tdcompile
    assert "|" not in row.code + row.reference + row.tdcompile + row.why
    assert row.why


def class_of(text):
    name = text.removeprefix("raises ")
    return getattr(errors, name, None) or getattr(builtins, name)


@pytest.mark.parametrize("row", [r for r in DIFFERENCES if r.topic == "Errors"], ids=name_of)
def test_difference_of_errors_is_a_subclass(row):
    assert issubclass(class_of(row.tdcompile), class_of(row.reference))


def test_show_prints_values_of_either_package_alike():
    shown = {differences.show(package.TensorDict({}, [2]).shape) for package in PACKAGES.values()}
    assert shown == {"[2]"}
