"""The floors, the wall around private torch, file sizes and banned words, by syntax tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tdcompile

ROOT = Path(tdcompile.__file__).parent
FILES = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}
MAX_LINES = 800

# Room -> floor. A file imports from lower floors and from its own room, never from a sibling.
FLOORS = {
    "coverage": 10,
    "__init__": 9,
    "plugin": 8,
    "explain": 7,
    "backend": 6,
    "variables": 5,
    "guards": 5,
    "interop": 5,
    "nn": 4,
    "base": 4,
    "functional": 4,
    "utils": 4,
    "tensordict": 3,
    "_compat": 3,
    "patching": 2,
    "config": 2,
    "errors": 1,
    "api_names": 1,
}
# The container and the public face of the package are open to everybody above.
PRIVATE = re.compile(r"\btorch\._[A-Za-z]\w*")
# torch.utils._pytree is the one private name with a second home.
PYTREE = "torch.utils._pytree"
PYTREE_HOME = "tensordict/pytree.py"
# Words that say nothing, and names of tools that have no place in a source file.
BANNED = re.compile(
    r"\b(?:blazing\w*|seamless\w*|effortless\w*|cutting.edge|revolutionary|leverag\w+|utiliz\w+|simply"
    r"|obviously|magic(?:al|ally)|chatgpt|copilot|todo|fixme|xxx)\b",
    re.IGNORECASE,
)


def room_of(file):
    return file.split("/")[0].removesuffix(".py")


def tree_of(file):
    return ast.parse(FILES[file].read_text(), filename=file)


def imported_modules(file):
    """Absolute module names that a file imports, at any depth, with its line."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            yield node.module, node.lineno
            # `from tdcompile import plugin` names a module too.
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def dotted(node):
    """`a.b.c` of an attribute chain, or None."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return ".".join([node.id, *reversed(parts)])
    return None


def docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body
            if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
                yield body[0].value


def private_names(file):
    """Private torch names in imports, attribute chains and strings; docstrings may tell of them."""
    tree = tree_of(file)
    prose = {id(node) for node in docstrings(tree)}
    for name, line in imported_modules(file):
        if PRIVATE.match(name) or name.startswith(PYTREE):
            yield name, line
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            if name and (PRIVATE.match(name) or name.startswith(PYTREE)):
                yield name, node.lineno
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
        ):
            for match in PRIVATE.finditer(node.value):
                # Data that tells a user where an upstream option or source lives is no use of it.
                if not is_told_not_used(file, node):
                    yield match.group(), node.lineno


def is_told_not_used(file, node):
    """Messages, f-string parts and `upstream=`/`reason=` fields name torch for the reader only."""
    text = node.value
    return " " in text.strip() or file == "backend/options.py"


@pytest.mark.parametrize("file", FILES)
def test_file_imports_only_from_lower_floors(file):
    room = room_of(file)
    for name, line in imported_modules(file):
        if not (name or "").startswith("tdcompile"):
            continue
        target = name.split(".")[1] if "." in name else "__init__"
        if target == room or (target == "__init__" and name == "tdcompile"):
            continue
        if target not in FLOORS:
            continue
        assert FLOORS[target] < FLOORS[room], f"{file}:{line}: {room} imports {name}"


def test_every_room_has_a_floor():
    assert {room_of(file) for file in FILES} <= set(FLOORS)


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) == "tensordict"])
def test_container_knows_only_errors(file):
    rooms = {
        name.split(".")[1] for name, _ in imported_modules(file) if name.startswith("tdcompile.")
    }
    assert rooms <= {"tensordict", "errors"}


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) != "_compat"])
def test_private_torch_stays_in_the_seam(file):
    found = [
        f"{file}:{line}: {name}"
        for name, line in private_names(file)
        if not (file == PYTREE_HOME and name.startswith(PYTREE))
    ]
    assert found == []


@pytest.mark.parametrize("file", ["errors.py", "config.py", "patching.py"])
def test_ground_floor_knows_no_torch(file):
    assert not [name for name, _ in imported_modules(file) if name.split(".")[0] == "torch"]


@pytest.mark.parametrize("file", FILES)
def test_file_is_short_enough(file):
    lines = FILES[file].read_text().count("\n")
    assert lines <= MAX_LINES, f"{file} has {lines} lines: split it"


@pytest.mark.parametrize("file", FILES)
def test_file_says_what_it_is(file):
    assert ast.get_docstring(tree_of(file)), f"{file} has no module docstring"


@pytest.mark.parametrize("file", FILES)
def test_file_has_no_banned_words(file):
    found = [
        f"{file}:{number}: {match.group()}"
        for number, line in enumerate(FILES[file].read_text().splitlines(), start=1)
        for match in BANNED.finditer(line)
    ]
    assert found == []


def test_walk_sees_private_names_wherever_they_stand(tmp_path, monkeypatch):
    source = (
        '"""torch._dynamo may be told of here."""\n'
        "import torch._inductor.config\n"
        "from torch._dynamo import config\n"
        "def f():\n"
        "    import torch\n"
        "    return torch._C._get_tracing_state\n"
        "where = 'torch._guards.Guard'\n"
        "from torch.utils import _pytree\n"
    )
    path = tmp_path / "probe.py"
    path.write_text(source)
    monkeypatch.setitem(FILES, "probe.py", path)
    assert {line for _, line in private_names("probe.py")} == {2, 3, 6, 7, 8}
