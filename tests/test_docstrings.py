"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest
import torch

import tdcompile

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(tdcompile.__path__, "tdcompile.")
    if "._compat" not in name
]


def _examples(name):
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    globs = {**vars(tdcompile), **vars(module), "torch": torch, "tdcompile": tdcompile}
    return [test for test in finder.find(module, globs=globs) if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_of_module_print_what_they_say(name):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=flags)
    report = []
    for test in _examples(name):
        runner.run(test, out=report.append)
    assert not report, "".join(report)
