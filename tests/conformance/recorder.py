"""Pytest plugin: one line of JSON for each test that has run, written at once.

Environment: ``CONFORMANCE_RECORD`` (the file; tests in it are not run again),
``CONFORMANCE_STANDIN`` (``tdcompile`` is installed before the tests, as its users do).

Invariant: a test that ends the process leaves a line that says it began.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest

_PATH = os.environ.get("CONFORMANCE_RECORD", os.devnull)
_STANDIN = bool(os.environ.get("CONFORMANCE_STANDIN"))
# What an error text says about a name that an object or module does not have.
_NO_ATTRIBUTE = re.compile(r"has no attribute '(\w+)'")
_uses_before = 0


def _write(**record: Any) -> None:
    with open(_PATH, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def _uses() -> list[str]:
    if not _STANDIN:
        return []
    import standin

    return standin.uses


def missing_names(error: BaseException | None) -> list[str]:
    """The names that an error, or one that led to it, says are not there."""
    found: list[str] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error)
        if type(error).__name__ == "MissingName":
            found.append(text.removeprefix("tdcompile has no "))
        else:
            found += _NO_ATTRIBUTE.findall(text)
            found += re.findall(r"tdcompile has no ([\w.]+)", text)
        error = error.__cause__ or error.__context__
    return list(dict.fromkeys(found))


def pytest_configure(config: Any) -> None:
    if _STANDIN:
        import tdcompile

        tdcompile.install()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    done = set()
    if os.path.exists(_PATH):
        with open(_PATH, encoding="utf-8") as file:
            done = {json.loads(line).get("id") for line in file if line.endswith("\n")}
    rest = [item for item in items if item.nodeid not in done]
    if len(rest) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
        items[:] = rest


def pytest_runtest_logstart(nodeid: str) -> None:
    global _uses_before
    _uses_before = len(_uses())
    _write(id=nodeid, outcome="began")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    report = yield
    if report.outcome != "passed" or report.when == "teardown":
        item.user_properties.append(("conformance", _summary(report, call)))
    if report.when == "teardown":
        parts = [value for name, value in item.user_properties if name == "conformance"]
        # The first phase that did not pass tells why.
        summary = next((part for part in parts if part["outcome"] != "passed"), parts[-1])
        swallowed = list(dict.fromkeys(_uses()[_uses_before:]))
        if swallowed and summary["outcome"] == "passed":
            summary = {"outcome": "failed", "error": "MissingName", "text": "", "missing": []}
        if swallowed:
            summary["missing"] = list(dict.fromkeys(summary.get("missing", []) + swallowed))
        _write(id=item.nodeid, seconds=round(call.duration, 2), **summary)
    return report


def _summary(report: Any, call: Any) -> dict[str, Any]:
    outcome = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = "skipped" if outcome == "skipped" else "failed"
    elif outcome == "failed" and report.when != "call":
        outcome = "error"
    if outcome in ("passed", "skipped"):
        return {"outcome": outcome}
    error = call.excinfo.value if call.excinfo is not None else None
    text = str(error) if error is not None else str(report.longrepr)
    return {
        "outcome": outcome,
        "error": type(error).__name__,
        "text": " ".join(text.split())[:300],
        "missing": missing_names(error),
    }


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        lines = [line for line in str(report.longrepr).splitlines() if line.strip()]
        text = next((line for line in reversed(lines) if line.startswith("E ")), lines[-1])
        _write(collect=report.nodeid, text=" ".join(text.split())[:300])


def pytest_sessionfinish(session: Any) -> None:
    _write(done=True)
