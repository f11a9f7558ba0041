"""Results of both packages as rows of a table, and failures grouped by reason. No input or output.

Key names: :class:`Row`, :func:`row`, :func:`reason`, :func:`is_connector`, :func:`page`.

Invariant: a test counts where the reference package passes it and it is about no connector.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

Results = dict[str, dict[str, Any]]

# Files and words of test names that are about a connector to another format or service.
_CONNECTOR_FILES = (
    "test_h5.py",
    "test_zarr.py",
    "test_tabular.py",
    "test_ucxx.py",
    "store/",
    "test_utils_key_json_split.py",
)
_CONNECTOR_WORDS = frozenset(
    [
        "h5",
        "h5py",
        "zarr",
        "parquet",
        "csv",
        "pandas",
        "dataframe",
        "arrow",
        "pyarrow",
        "json",
        "redis",
        "store",
        "mds",
    ]
)

REASONS = {
    "private": "reaches into private names of the reference",
    "connector": "connectors, left out for now (not counted)",
    "nn": "needs `tdcompile.nn`",
    "missing": "needs a public name that is not there",
    "other": "everything else",
}

# Folder of the tests -> (files, share to reach).
GOALS = {
    "test/tensorclass": ("test/tensorclass",),
    "test/tensordict and test/memmap": ("test/tensordict", "test/memmap"),
    "test/compile": ("test/compile",),
}
_TARGETS = {"test/tensorclass": 95, "test/tensordict and test/memmap": 92, "test/compile": 80}


def is_connector(test: str) -> bool:
    """Tell whether a test is about a connector, from its id."""
    path, _, name = test.partition("::")
    if any(part in path for part in _CONNECTOR_FILES):
        return True
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    return not _CONNECTOR_WORDS.isdisjoint(words)


def _is_private(name: str) -> bool:
    parts = name.split(".")
    return any(part.startswith("_") and not part.startswith("__") for part in parts)


def _needs_nn(test: str, names: list[str]) -> bool:
    # The parameters' container is no module of tdcompile.nn.
    names = [name for name in names if not name.endswith("TensorDictParams")]
    return any(name.startswith("tensordict.nn") for name in names) or test.startswith("test/nn/")


def reason(test: str, result: dict[str, Any]) -> tuple[str, str]:
    """Say why a test fails: a key of ``REASONS`` and what is missing, or the error's name."""
    names = result.get("missing", [])
    if is_connector(test):
        return "connector", ""
    if _needs_nn(test, names):
        return "nn", ""
    private = [name for name in names if _is_private(name)]
    public = [name for name in names if not _is_private(name)]
    if private:
        return "private", private[0].removeprefix("tensordict.")
    if public and result.get("error") in ("MissingName", "AttributeError"):
        return "missing", public[0].removeprefix("tensordict.")
    return "other", result.get("error", "")


@dataclass
class Row:
    """One file: counts of ours, what the reference passes (without connectors), what both pass."""

    file: str
    counts: dict[str, int] = field(default_factory=dict)
    reference: int = 0
    both: int = 0
    failing: Results = field(default_factory=dict)
    connectors: int = 0

    @property
    def share(self) -> float:
        """What we pass of what the reference passes, in percent."""
        return 100 * self.both / self.reference if self.reference else 100.0


def row(file: str, ours: Results, reference: Results) -> Row:
    """Compare the results of one file.

    A test that ours did not collect fails with the error of the file, or as ``not collected``.
    """
    out = Row(file)
    for result in ours.values():
        outcome = result["outcome"]
        out.counts[outcome] = out.counts.get(outcome, 0) + 1
    absent = {"outcome": "error", "error": "not collected", "text": "", "missing": []}
    for test, result in reference.items():
        if result["outcome"] != "passed":
            continue
        found = ours.get(test, absent)
        passed = found["outcome"] == "passed"
        if is_connector(test):
            out.connectors += 1
            continue
        out.reference += 1
        out.both += passed
        if not passed:
            if found["outcome"] == "skipped":
                found = {**found, "error": "skipped"}
            out.failing[test] = found
    return out


def table(rows: list[Row]) -> str:
    """The table, one row a file."""
    lines = [
        "| file | passed | failed | skipped | errors | the reference | of these | share |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        passed, failed, skipped, error = (
            r.counts.get(name, 0) for name in ("passed", "failed", "skipped", "error")
        )
        lines.append(
            f"| `{r.file.removeprefix('test/')}` | {passed} | {failed} | {skipped} | {error} "
            f"| {r.reference} | {r.both} | {r.share:.1f} % |"
        )
    return "\n".join(lines)


def _merged(rows: list[Row], prefixes: tuple[str, ...]) -> Row:
    out = Row("")
    for r in rows:
        if r.file.startswith(prefixes):
            out.reference += r.reference
            out.both += r.both
            out.failing |= r.failing
    return out


def goals(rows: list[Row]) -> str:
    """The shares by folder, beside what is to be reached."""
    lines = [
        "| tests | the reference passes | passed | share | share without `tdcompile.nn` | goal |",
        "|---|---|---|---|---|---|",
    ]
    for name, prefixes in GOALS.items():
        r = _merged(rows, prefixes)
        nn = sum(reason(test, result)[0] == "nn" for test, result in r.failing.items())
        rest = Row("", reference=r.reference - nn, both=r.both)
        lines.append(
            f"| {name} | {r.reference} | {r.both} | {r.share:.1f} % | {rest.share:.1f} % "
            f"| {_TARGETS[name]} % |"
        )
    return "\n".join(lines)


def test_name(test: str) -> str:
    """The id without its parameters and folder."""
    path, _, name = test.partition("::")
    return f"{path.rpartition('/')[2].removesuffix('.py')}::{name.partition('[')[0]}"


def kind(test: str) -> str:
    """The kind of tensordict that a parametrised test is about, or an empty text."""
    parameters = test.partition("[")[2].rstrip("]")
    found = re.search(
        r"(?:nested_)?(?:tensorclass|stacked_td|typed_td)|idx_td|sub_td2?|memmap_td|permute_td|"
        r"unsqueezed_td|squeezed_td|td_reset_bs|td_h5|td_params|td_with_non_tensor(?:_and_metadata)?|"
        r"td_with_unbatched|nested_td|\btd\b",
        parameters,
    )
    return found[0] if found else ""


def groups(rows: list[Row]) -> dict[str, dict[str, dict[str, int]]]:
    """Failing tests: reason -> what -> test name -> how many parametrised tests."""
    out: dict[str, dict[str, dict[str, int]]] = {name: {} for name in REASONS}
    for r in rows:
        for test, result in r.failing.items():
            key, what = reason(test, result)
            names = out[key].setdefault(what, defaultdict(int))
            names[test_name(test)] += 1
    return out


def page(rows: list[Row], versions: str) -> str:
    """The text of ``docs/conformance.md``."""
    connectors = sum(r.connectors for r in rows)
    parts = [
        "<!-- made by: python tests/conformance/run.py CHECKOUT --write -->\n",
        "# Conformance\n",
        "The test files of the `tensordict` package, run against tdcompile: `tdcompile` stands in\n"
        "the place of the `tensordict` module, and a name that it does not have raises when it is\n"
        f"used. A test counts where the package itself passes it. {versions}\n",
        f"Not counted: {connectors} tests of connectors to other formats and services.\n",
        "## Shares\n",
        goals(rows) + "\n",
        "## Files\n",
        table(rows) + "\n",
        "## Failing tests that the package passes\n",
        "The number after a name counts its parametrised tests.\n",
    ]
    for key, by_what in groups(rows).items():
        if not by_what:
            continue
        total = sum(sum(names.values()) for names in by_what.values())
        parts.append(f"### {REASONS[key]}: {total}\n")
        ordered = sorted(by_what.items(), key=lambda item: -sum(item[1].values()))
        for what, names in ordered:
            files: dict[str, list[str]] = defaultdict(list)
            for name, count in sorted(names.items()):
                file, _, rest = name.partition("::")
                files[file].append(f"`{rest}`" + (f" {count}" if count > 1 else ""))
            listing = "; ".join(f"{file}: {', '.join(tests)}" for file, tests in files.items())
            lead = f"**`{what}`** ({sum(names.values())}): " if what else ""
            parts.append(f"- {lead}{listing}")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"
