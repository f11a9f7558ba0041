"""Time what importing a package costs beyond ``import torch``, each time in a new process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from report import Table, run_benchmark
from timer import Timing

if TYPE_CHECKING:
    from collections.abc import Iterable

ROUNDS = 7
PROGRAM = """
import time, torch
start = time.perf_counter()
import {package}
print((time.perf_counter() - start) * 1e6)
"""


def import_us(package: str) -> float:
    """Return the microseconds of importing `package` in a new process, after torch."""
    root = Path(__file__).resolve().parents[1]  # where tdcompile is found when it is not installed
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM.format(package=package)]
    return float(
        subprocess.run(command, cwd=root, capture_output=True, check=True, text=True).stdout
    )


def make_tables(packages: Iterable[str]) -> list[Table]:
    """Return the table of import times."""
    samples: dict[str, list[float]] = {package: [] for package in packages}
    for _ in range(ROUNDS + 1):
        for package, values in samples.items():
            values.append(import_us(package))
    # The first round reads files from disk and writes bytecode.
    timings = {package: Timing(tuple(values[1:])) for package, values in samples.items()}
    rows = [[f"import {package}", str(timing)] for package, timing in timings.items()]
    return [Table("Import, beyond import torch", ["", "time"], rows)]


if __name__ == "__main__":
    run_benchmark(make_tables)
