"""The pages of ``docs/`` that are made from the package's own tables.

Key names: :data:`PAGES` (file name -> function that gives its text), :func:`main` (writes them:
``python tests/pages.py``).

Invariant: ``test_docs.py`` compares each file with its text. In some only the tables are made:
what stands below a marker, up to the next empty line.
"""

from __future__ import annotations

import pkgutil
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
if __name__ == "__main__":
    # A script has its own folder first: `tensordict` there is no package, the installed one is.
    sys.path.insert(0, str(ROOT))

import differences  # noqa: E402
import guard_rows  # noqa: E402

from tdcompile.guards import policy  # noqa: E402
from tdcompile.guards.passes import PASSES  # noqa: E402
from tdcompile.patching import Patch  # noqa: E402
from tdcompile.variables import registry  # noqa: E402
from tdcompile.variables.breaks import CATEGORIES  # noqa: E402

_GRAPH_BREAKS = """\
<!-- made by: python tests/pages.py -->

# Graph breaks

Where a program does something that a trace cannot know, Dynamo ends the graph and runs that part
eagerly; with `fullgraph=True` it raises. This page lists the breaks that tdcompile makes on its own
account. It is made from `tdcompile.variables.breaks.CATEGORIES`. All other breaks are Dynamo's.

A category is the first line of the error, and stands in the output of
`TORCH_LOGS=graph_breaks`:

```python
import torch

import tdcompile
from tdcompile import TensorDict

parent = TensorDict({"n": {"x": torch.ones(3)}}, batch_size=[3]).lock_()


def program(td):
    td.unlock_()
    return td["x"] + 1


with tdcompile.install():
    try:
        torch.compile(program, backend="eager", fullgraph=True)(parent["n"])
    except Exception as error:
        print(str(error).splitlines()[0])
```

```text
tdcompile: unlock of a held tensordict
```
"""


def resolve(path: str) -> Any:
    """The object at a dotted path of the package.

    Raises:
        AttributeError: there is none.
    """
    return pkgutil.resolve_name(path)


def graph_breaks() -> str:
    """The text of ``graph_breaks.md``."""
    parts = [_GRAPH_BREAKS]
    for category, (explanation, hints) in CATEGORIES.items():
        actions = "\n".join(f"- {hint}" for hint in hints)
        explanation = textwrap.fill(explanation, 100)
        parts.append(f"## {category}\n\n{explanation}\n\nWhat to do:\n\n{actions}\n")
    return "\n".join(parts)


def _passes() -> str:
    lines = ["| pass | it assumes that | unsound when |", "|---|---|---|"]
    lines += [f"| `{p.name}` | {p.assumption} | {p.unsound_when} |" for p in PASSES]
    return "\n".join(lines)


def _patches() -> str:
    lines = ["| attribute | why |", "|---|---|"]
    for patch_set in (*registry.patches(), *policy.patches()):
        for patch in patch_set.patches:
            if isinstance(patch, Patch):
                where = patch.where().removeprefix("torch._dynamo.")
                lines.append(f"| `{where}` | {patch.reason} |")
    return "\n".join(lines)


def _with_tables(name: str, tables: dict[str, str]) -> str:
    """The text of a page with the tables below its markers made anew."""
    text = (DOCS / name).read_text()
    for marker, table in tables.items():
        made = f"<!-- {marker} -->\n\n{table}\n\n"
        pattern = rf"<!-- {marker} -->\n\n(?:\|.*\n)*\n?"
        text, count = re.subn(pattern, lambda _, made=made: made, text)
        assert count == 1, f"expected one marker <!-- {marker} -->, found {count}"
    return text


PAGES = {
    "differences.md": differences.page,
    "graph_breaks.md": graph_breaks,
    "guards.md": lambda: _with_tables(
        "guards.md", {"rows": guard_rows.table(), "passes": _passes()}
    ),
    "design/trackers.md": lambda: _with_tables("design/trackers.md", {"patches": _patches()}),
}


def main() -> None:
    """Write every page."""
    for name, make in PAGES.items():
        (DOCS / name).write_text(make())


if __name__ == "__main__":
    main()
