"""Which public names of the ``tensordict`` package are here: ``python -m tdcompile.coverage``.

Key names: :func:`sections` (what there is, as data), :func:`report` (the text), :func:`main`.

Invariant: the names are looked up on this package alone; the reference need not be installed.
"""

from __future__ import annotations

import fnmatch
import sys
from dataclasses import dataclass
from typing import Any

import tdcompile
from tdcompile.api_names import LATER, SECTIONS

__all__ = ["Section", "main", "report", "sections"]

_WIDTH = 100


@dataclass(frozen=True)
class Section:
    """The names of one class or module of the reference.

    Attributes:
        title: its name.
        present: names that are here.
        missing: names that are not here and should be.
        later: names that are not here and are left out for now.
    """

    title: str
    present: tuple[str, ...]
    missing: tuple[str, ...]
    later: tuple[str, ...]


def sections() -> list[Section]:
    """Look every name up; one section a class or module, in the order of the data."""
    return [_section(title, names) for title, names in SECTIONS.items()]


def _section(title: str, names: tuple[str, ...]) -> Section:
    holder = _holder(title)
    found: dict[str, list[str]] = {"present": [], "missing": [], "later": []}
    for name in names:
        if holder is not None and hasattr(holder, name):
            found["present"].append(name)
        else:
            found["later" if _is_later(title) or _is_later(name) else "missing"].append(name)
    return Section(title, **{state: tuple(names) for state, names in found.items()})


def _holder(title: str) -> Any:
    holder: Any = tdcompile
    for part in () if title == "package level" else title.split("."):
        holder = getattr(holder, part, None)
    return holder


def _is_later(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in LATER)


def report(found: list[Section] | None = None) -> str:
    """Return the text that the command prints: counts by section, then names that are not here."""
    found = sections() if found is None else found
    rows: list[tuple[str, ...]] = [("section", "there", "missing", "later")]
    rows += [(s.title, *map(str, map(len, (s.present, s.missing, s.later)))) for s in found]
    totals = [sum(int(row[column]) for row in rows[1:]) for column in (1, 2, 3)]
    rows.append(("all", *map(str, totals)))
    lines = [f"{row[0]:<36}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in rows]
    for state in ("missing", "later"):
        for section in found:
            names = getattr(section, state)
            if names:
                lines += ["", f"{state}, {section.title}:", *_wrapped(names)]
    return "\n".join(lines)


def _wrapped(names: tuple[str, ...]) -> list[str]:
    lines = [" "]
    for name in names:
        if len(lines[-1]) + len(name) + 1 > _WIDTH:
            lines.append(" ")
        lines[-1] += f" {name}"
    return lines


def main() -> int:
    """Print the report; 0 if nothing is missing but what is left out for now, else 1."""
    found = sections()
    print(report(found))
    return int(any(section.missing for section in found))


if __name__ == "__main__":
    sys.exit(main())
