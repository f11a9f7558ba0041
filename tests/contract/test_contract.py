from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tdcompile._compat
from tdcompile._compat import contract
from tdcompile._compat.contract import CONTRACT, PrivateName, verify
from tdcompile._compat.version import torch_version

SEAM = Path(tdcompile._compat.__file__).parent
VERSION = torch_version()


@pytest.mark.parametrize(
    "name",
    [name for name in dict.fromkeys(CONTRACT) if name.applies_to(VERSION)],
    ids=lambda name: f"{name.needed_by.rsplit('.')[-1]}-{name.path}",
)
def test_private_name_is_what_the_contract_says(name):
    assert [str(breach) for breach in verify([name])] == []


@pytest.mark.parametrize("name", CONTRACT, ids=lambda name: name.path)
def test_record_names_its_user(name):
    assert name.needed_by.startswith("tdcompile.")


def imported_private_names():
    for path in sorted(SEAM.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch._"):
                for alias in node.names:
                    yield path.name, f"{node.module}.{alias.name}"


@pytest.mark.parametrize(
    ("file", "path"), sorted(set(imported_private_names())), ids=lambda value: value
)
def test_private_import_of_the_seam_is_in_the_contract(file, path):
    listed = {name.path for name in CONTRACT}
    assert path in listed or any(known.startswith(f"{path}.") for known in listed), (
        f"{file} imports {path}: add one line to tdcompile/_compat/contract.py"
    )


BROKEN = {
    "no-module": PrivateName("torch._no_such_module.name", "function"),
    "no-function": PrivateName("torch._dynamo.no_such_name", "function"),
    "no-method": PrivateName("torch._dynamo.variables.base.VariableTracker.no_such", "function"),
    "wrong-kind": PrivateName("torch._dynamo.reset", "class"),
    "no-parameter": PrivateName("torch._inductor.list_mode_options", "function", ("speed",)),
}
PROBLEMS = {
    "no-module": "expected a function, found nothing: no attribute '_no_such_module'",
    "no-function": "expected a function, found nothing: no attribute 'no_such_name'",
    "no-method": "expected a function, found nothing: no attribute 'no_such'",
    "wrong-kind": "expected a class, found <function reset",
    "no-parameter": "expected the parameters speed, found (mode, dynamic)",
}


@pytest.mark.parametrize("case", BROKEN)
def test_verify_says_expected_and_found(case):
    (breach,) = verify([BROKEN[case]])
    assert breach.name is BROKEN[case]
    assert breach.problem.startswith(PROBLEMS[case])
    assert str(breach).startswith(f"{BROKEN[case].path}: ")


def test_verify_reports_all_breaches_at_once():
    assert len(verify(BROKEN.values())) == len(BROKEN)


def test_verify_skips_names_of_other_releases():
    later = PrivateName("torch._dynamo.no_such_name", "function", since=(99, 0))
    gone = PrivateName("torch._dynamo.no_such_name", "function", until=(2, 0))
    assert verify([later, gone]) == []


def test_resolve_finds_modules_that_nobody_imported():
    assert contract.resolve("torch.utils.data.sampler.Sampler").__name__ == "Sampler"
