"""Run the test files of a checkout of the ``tensordict`` package against ``tdcompile``.

``python tests/conformance/run.py CHECKOUT [--only SUBSTR] [-k EXPR] [--workers N] [--write]``

Key names: :func:`run_file` (one file, in processes of its own), :func:`load` (recorded results).

Invariant: nothing of the checkout is changed or imported as ``tensordict``; a test that crashes or
hangs fails, and those after it run.

Results lie in ``$CONFORMANCE_CACHE``, by default ``~/.cache/tdcompile-conformance``: those of the
reference package once for each commit and version, ours of the last run for each copy of the
project. ``--write`` makes ``docs/conformance.md``.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import hashlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grouping

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FOLDERS = ("tensordict", "memmap", "tensorclass", "compile", "utils", "nn", "store")
TIMEOUT_S = 90


def cache_folder() -> Path:
    """Where results are kept."""
    default = Path.home() / ".cache" / "tdcompile-conformance"
    return Path(os.environ.get("CONFORMANCE_CACHE", default))


def load(path: Path) -> grouping.Results:
    """Read recorded results; a test that began and did not end has crashed or hung."""
    out: grouping.Results = {}
    collect = None
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        record = json.loads(line)
        if "collect" in record:
            collect = record
        elif "id" in record:
            out[record.pop("id")] = record
    for result in out.values():
        if result["outcome"] == "began":
            result.update(outcome="error", error="crash or hang", text="", missing=[])
    if collect is not None and not out:
        out["(collection)"] = {
            "outcome": "error", "error": "collection", "text": collect["text"], "missing": [],
        }  # fmt: skip
    return out


def _environment(record: Path, *, standin: bool) -> dict[str, str]:
    drop = ("PYTEST_", "PYTHONPATH", "CONFORMANCE_STANDIN")
    env = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    folders = [HERE / "hook", HERE, *([ROOT] if standin else [])]
    env |= {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CONFORMANCE_RECORD": str(record),
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    return env | ({"CONFORMANCE_STANDIN": "1"} if standin else {})


def _ends(record: Path) -> tuple[int, bool]:
    text = record.read_text(encoding="utf-8") if record.exists() else ""
    return text.count("\n"), text.rstrip().endswith('{"done": true}')


def _attempt(file: Path, tests: Path, record: Path, extra: list[str], *, standin: bool) -> None:
    """Run pytest once; end it when nothing has been recorded for longer than a test may take."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=no", "--no-summary"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "recorder"]
    command += [f"--timeout={TIMEOUT_S}", str(file), *extra]
    with open(record.with_suffix(".log"), "a", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, cwd=tests, env=_environment(record, standin=standin),
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        lines, since = -1, time.monotonic()
        while True:
            try:
                process.wait(timeout=1)
                break
            except subprocess.TimeoutExpired:
                pass
            now = _ends(record)[0]
            if now != lines:
                lines, since = now, time.monotonic()
            if time.monotonic() - since > 2 * TIMEOUT_S + 30:
                break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what tests have left behind, too
        process.wait()


def run_file(
    file: Path, tests: Path, record: Path, extra: list[str], *, standin: bool
) -> grouping.Results:
    """Run one test file to its end, in a new process after each crash."""
    record.parent.mkdir(parents=True, exist_ok=True)
    for stale in (record, record.with_suffix(".log")):
        stale.unlink(missing_ok=True)
    begun = 0
    while True:
        _attempt(file, tests, record, extra, standin=standin)
        now, done = sum(1 for _ in load(record)), _ends(record)[1]
        if done or now <= begun:
            return load(record)
        begun = now


def reference_results(file: Path, tests: Path, cache: Path) -> grouping.Results:
    """Results of the installed package, run if they are not in the cache."""
    record = cache / f"{file.parent.name}-{file.stem}.jsonl"
    if not record.exists():
        part = record.with_suffix(f".{os.getpid()}.jsonl")
        run_file(file, tests, part, [], standin=False)
        part.rename(record)  # whole, also when another run makes the same
    return load(record)


def _version(checkout: Path) -> tuple[str, str]:
    git = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    return commit, importlib.metadata.version("tensordict")


def _torch() -> str:
    return importlib.metadata.version("torch")


def test_files(checkout: Path, only: str) -> list[Path]:
    """The test files of a checkout, those whose path contains ``only``."""
    files = [
        f for folder in FOLDERS for f in sorted((checkout / "test" / folder).glob("test_*.py"))
    ]
    return [file for file in files if only in file.relative_to(checkout).as_posix()]


def report_failures(rows: list[grouping.Row]) -> str:
    """Failing ids that the reference passes, with the error of each."""
    lines = []
    for r in rows:
        for test, result in r.failing.items():
            key, what = grouping.reason(test, result)
            lines.append(f"{test}\t{key}\t{what}\t{result.get('text', '')[:160]}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run, print the table, and write the page if told to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--only", default="", help="run files whose path contains this")
    parser.add_argument("-k", default="", help="pytest's -k; the reference counts for these only")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--failures", action="store_true", help="print the failing tests, too")
    parser.add_argument("--write", action="store_true", help="write docs/conformance.md")
    options = parser.parse_args(arguments)
    if options.write and (options.only or options.k):
        parser.error("expected a run of all files with --write, found --only or -k")
    checkout = options.checkout.resolve()
    commit, version = _version(checkout)
    tests = checkout / "test"
    reference_cache = cache_folder() / f"reference-{commit}-{version}-torch{_torch()}"
    ours_cache = cache_folder() / f"ours-{hashlib.sha1(str(ROOT).encode()).hexdigest()[:8]}"
    extra = ["-k", options.k] if options.k else []

    def both(file: Path) -> grouping.Row:
        name = file.relative_to(checkout).as_posix()
        reference = reference_results(file, tests, reference_cache)
        record = ours_cache / f"{file.parent.name}-{file.stem}{'-k' if extra else ''}.jsonl"
        ours = run_file(file, tests, record, extra, standin=True)
        if extra:
            reference = {test: result for test, result in reference.items() if test in ours}
        r = grouping.row(name, ours, reference)
        print(grouping.table([r]).splitlines()[-1], file=sys.stderr, flush=True)
        return r

    files = test_files(checkout, options.only)
    with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        by_size = sorted(files, key=lambda file: -file.stat().st_size)
        jobs: dict[Path, Any] = {file: pool.submit(both, file) for file in by_size}
    rows = [jobs[file].result() for file in files]
    print(grouping.table(rows))
    print()
    print(grouping.goals(rows))
    if options.failures:
        print()
        print(report_failures(rows))
    if options.write:
        versions = f"Checkout `{commit}`, tensordict {version}, torch {_torch()}."
        (ROOT / "docs" / "conformance.md").write_text(grouping.page(rows, versions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
