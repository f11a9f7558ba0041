"""The documentation: its examples run, and the pages that are made from tables are up to date."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass

import guard_rows
import pages
import pytest
from pages import DOCS, PAGES, ROOT

import tdcompile
from tdcompile.variables.breaks import CATEGORIES

FILES = {
    path.relative_to(ROOT).as_posix(): path
    for path in (*sorted(DOCS.rglob("*.md")), ROOT / "README.md")
    if path.exists()
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Example:
    """A block of Python and the output that stands directly below it, if any."""

    line: int
    code: str
    output: str | None


def examples_of(text):
    blocks = list(BLOCK.finditer(text))
    for block, following in zip(blocks, [*blocks[1:], None], strict=False):
        if block[1] != "python":
            continue
        is_output = (
            following is not None
            and following[1] == "text"
            and text[block.end() : following.start()].strip() == ""
        )
        line = text[: block.start()].count("\n") + 2
        yield Example(line, block[2], following[2] if is_output else None)


@pytest.mark.parametrize("name", FILES)
def test_page_examples_run_and_print_what_the_page_says(name):
    tdcompile.uninstall()
    scope = {"__name__": "__main__"}
    try:
        for example in examples_of(FILES[name].read_text()):
            printed = io.StringIO()
            # Line numbers of the page in a traceback.
            code = compile("\n" * (example.line - 1) + example.code, FILES[name], "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, scope)
            if example.output is not None:
                assert printed.getvalue() == example.output, f"{name}:{example.line}"
    finally:
        tdcompile.uninstall()


def test_examples_are_found_with_the_output_below_them():
    text = "```python\na\n```\n\n```text\nb\n```\n\n```python\nc\n```\nprose\n\n```text\nd\n```\n"
    assert list(examples_of(text)) == [Example(2, "a\n", "b\n"), Example(10, "c\n", None)]


@pytest.mark.parametrize("name", PAGES)
def test_page_made_from_a_table_is_up_to_date(name):
    assert (DOCS / name).read_text() == PAGES[name](), "run python tests/pages.py"


@pytest.mark.parametrize("row", guard_rows.ROWS, ids=lambda row: row.code.replace(" ", ""))
def test_row_of_guards_is_what_a_compile_gives(row):
    assert guard_rows.found_guards(row) == row.guards


@pytest.mark.parametrize("category", CATEGORIES)
def test_category_of_graph_breaks_is_used_and_has_an_action(category):
    explanation, hints = CATEGORIES[category]
    assert category.startswith("tdcompile: ")
    assert explanation.endswith(".")
    assert hints
    assert all(hint[0].isupper() and hint.endswith(".") for hint in hints)
    folder = ROOT / "tdcompile" / "variables"
    calls = "".join(path.read_text() for path in folder.glob("*.py") if path.stem != "breaks")
    assert f'"{category}"' in calls


# A name in backticks that looks like a dotted name of ours, or a file of the repository.
OWN_NAME = re.compile(r"`(tdcompile(?:\.\w+)+)(?:\(\))?`")
OWN_FILE = re.compile(r"`((?:tdcompile|tests|docs|examples|benchmarks)/[\w/.]+)`")


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("docs/")])
def test_page_names_things_that_exist(name):
    text = FILES[name].read_text()
    for match in OWN_NAME.finditer(text):
        if match[1] not in OPTIONS:
            assert pages.resolve(match[1]) is not None, match[1]
    for match in OWN_FILE.finditer(text):
        assert (ROOT / match[1]).exists(), match[1]


OPTIONS = {"tdcompile.audit", "tdcompile.mode", "tdcompile.passes"}


def test_page_on_trackers_names_each_file():
    text = FILES["docs/design/trackers.md"].read_text()
    folder = ROOT / "tdcompile" / "variables"
    files = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    assert files == set(re.findall(r"^\| `(\w+\.py)` \|", text, re.MULTILINE))


# A reference from one page to another.
LINK = re.compile(r"\]\(([^)#:]+)\)")


@pytest.mark.parametrize("name", FILES)
def test_page_links_to_files_that_exist(name):
    for match in LINK.finditer(FILES[name].read_text()):
        assert (FILES[name].parent / match[1]).exists(), match[1]
