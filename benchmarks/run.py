"""Run every benchmark, each in its own process, and print one report.

python benchmarks/run.py
python benchmarks/run.py --only eager import --output report.md
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch
from packages import PACKAGES
from report import header

FOLDER = Path(__file__).resolve().parent
SUBJECTS = ("recompiles", "operators", "tracing", "calls", "eager", "import")


def run(subject: str, packages: list[str], markdown: bool) -> str:
    """Return what the benchmark of `subject` prints, or that it failed."""
    command = [sys.executable, str(FOLDER / f"bench_{subject}.py"), "--no-header"]
    command += ["--packages", *packages, *(["--markdown"] if markdown else [])]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return f"bench_{subject}.py failed: {last[0]}\n"
    return done.stdout


def main() -> None:
    """Parse the command line, run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=list(PACKAGES))
    parser.add_argument("--output", type=Path, help="write the report as Markdown to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts = [f"# Benchmarks\n\n{header()}\n"]
    print(header(), flush=True)
    for subject in options.only:
        start = time.monotonic()
        parts.append(run(subject, options.packages, markdown=options.output is not None))
        print(f"{subject}: {time.monotonic() - start:.0f} s", file=sys.stderr)
        if options.output is None:
            print(parts[-1], flush=True)
    if options.output:
        options.output.write_text("\n".join(parts))
        print(f"report: {options.output}")


if __name__ == "__main__":
    main()
