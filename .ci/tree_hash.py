"""Print one hash over everything that a test run depends on: sources, tests, settings, Python.

`make matrix` asks it so as not to repeat a run that has just passed on the very same tree.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

FOLDERS = ("tdcompile", "tests", "examples", "benchmarks", "requirements", ".ci")
FILES = ("pyproject.toml", "Makefile", "README.md")


def main() -> None:
    """Print the hash."""
    root = Path(__file__).resolve().parent.parent
    paths = [root / name for name in FILES if (root / name).is_file()]
    for folder in FOLDERS:
        paths += [path for path in (root / folder).rglob("*") if path.is_file()]
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(paths):
        if "__pycache__" in path.parts or path.suffix == ".pyc":
            continue
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
