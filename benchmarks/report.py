"""Turn results into tables, and give every benchmark the same command line.

Key names: `Table`, `header`, `run_benchmark`.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from packages import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass
class Table:
    """A title, columns and rows of text, and notes that say how to read them."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: Sequence[str] = ()
    num_labels: int = 1  # columns to the left; the others are numbers

    def to_text(self) -> str:
        """Return the table for a terminal."""
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]
        lines = [self.title, ""]
        for row in [self.columns, *self.rows]:
            cells = [
                f"{cell:{'<' if index < self.num_labels else '>'}{width}}"
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  " + "  ".join(cells).rstrip())
        lines += ["", *(f"  {note}" for note in self.notes), *([""] if self.notes else [])]
        return "\n".join(lines)

    def to_markdown(self) -> str:
        """Return the table in Markdown under a heading of level 2."""
        rule = [":--" if i < self.num_labels else "--:" for i in range(len(self.columns))]
        body = [[cell.replace("|", "\\|") for cell in row] for row in self.rows]
        lines = [f"## {self.title}", ""]
        lines += ["| " + " | ".join(row) + " |" for row in [self.columns, rule, *body]]
        lines += ["", *self.notes, *([""] if self.notes else [])]
        return "\n".join(lines)


def header() -> str:
    """Return what the numbers depend on: versions, machine and threads."""
    return (
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s)"
    )


def run_benchmark(make_tables: Callable[[Sequence[str]], list[Table]]) -> None:
    """Parse the command line, run `make_tables` with the chosen packages and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=list(PACKAGES))
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--no-header", action="store_true", help="print the tables only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # What fails or gives up is a cell of a table; the log would repeat it at length.
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    for name in ("torch._dynamo", "torch._guards", "torch._inductor"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    if not options.no_header:
        print(header(), end="\n\n")
    for table in make_tables(options.packages):
        print(table.to_markdown() if options.markdown else table.to_text(), flush=True)
