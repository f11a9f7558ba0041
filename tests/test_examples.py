"""The examples run from their command line and print what their docstrings promise."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path

import pytest
import torch

import tdcompile

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def load_example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cartpole():
    """The example as a module; what its main() sets for the process is set back."""
    threads, logger = torch.get_num_threads(), logging.getLogger("torch._dynamo")
    level = logger.level
    yield load_example("cartpole")
    torch.set_num_threads(threads)
    logger.setLevel(level)
    while tdcompile.is_installed():
        tdcompile.uninstall()


def run_table(cartpole, capsys, *arguments):
    """Return the printed table as {row title: [cells]}, header under ""."""
    cartpole.main(list(arguments))
    lines = capsys.readouterr().out.splitlines()
    titles = ["", *cartpole.ROWS]
    start = next(i for i, line in enumerate(lines) if line.startswith(" "))
    width = max(map(len, titles))
    rows = lines[start : start + len(titles)]
    assert [row[:width].rstrip() for row in rows] == titles
    return {title: row[width:].split("  ") for title, row in zip(titles, rows, strict=True)} | {
        "lines": lines
    }


def cells(row):
    return [cell.strip() for cell in row if cell.strip()]


@pytest.mark.parametrize("name", [path.stem for path in sorted(EXAMPLES.glob("*.py"))])
def test_example_file_has_docstring_and_main(name):
    source = (EXAMPLES / f"{name}.py").read_text()
    assert source.startswith('"""')
    assert "\ndef main(" in source
    assert '\nif __name__ == "__main__":\n    main()\n' in source


def test_cartpole_both_packages_compiled_prints_table_and_saves_curve(cartpole, capsys, tmp_path):
    output = tmp_path / "curve.png"
    table = run_table(
        cartpole,
        capsys,
        *("--iterations", "6", "--backend", "eager", "--seed", "0", "--output", str(output)),
    )
    assert cells(table[""]) == ["tensordict", "tdcompile"]
    for function in ("policy", "advantage", "loss"):
        reference, ours = map(int, cells(table[f"compilations: {function}"]))
        # Five key sets in six iterations; one compilation serves them all.
        assert reference == 5
        assert ours == 1
    assert cells(table["graph breaks"]) == ["0", "0"]
    assert cells(table["recompile limits hit"]) == ["0", "0"]
    # The same random numbers and the same arithmetic: the same episodes.
    for title in cartpole.ROWS:
        if title.startswith(("environment", "episodes", "mean return")):
            reference, ours = cells(table[title])
            assert reference == ours
    assert output.read_bytes().startswith(PNG_SIGNATURE)
    assert table["lines"][-1] == f"learning curve: {output}"


def test_cartpole_uncompiled_learns(cartpole, capsys, tmp_path):
    table = run_table(
        cartpole,
        capsys,
        *("--package", "tdcompile", "--iterations", "40", "--backend", "none", "--target", "150"),
        *("--output", str(tmp_path / "curve.png")),
    )
    (start,) = map(float, cells(table[f"mean return, first {cartpole.WINDOW} episodes"]))
    (end,) = map(float, cells(table[f"mean return, last {cartpole.WINDOW} episodes"]))
    assert start < 60
    assert end >= 150


def test_cartpole_seed_repeated_gives_equal_episodes(cartpole):
    first, second = (
        cartpole.train(
            "tdcompile", seconds=60, seed=3, target=500, backend=None, max_iterations=2
        ).returns
        for _ in range(2)
    )
    assert first
    assert first == second


def test_cartpole_missing_package_says_not_installed(cartpole, capsys, tmp_path, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        cartpole.importlib.util,
        "find_spec",
        lambda name: None if name == "tensordict" else find_spec(name),
    )
    table = run_table(
        cartpole,
        capsys,
        *("--iterations", "1", "--backend", "none", "--output", str(tmp_path / "curve.png")),
    )
    assert set(cells(table[""])) == {"tensordict", "tdcompile"}
    assert all(cells(table[title])[0] == "not installed" for title in cartpole.ROWS)
