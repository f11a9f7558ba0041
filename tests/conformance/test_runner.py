"""The conformance runner's own logic, on a made-up test file."""

from __future__ import annotations

import importlib.util
import textwrap

import grouping
import pytest
import run
import standin

import tdcompile

MADE_UP = """
    import multiprocessing
    import os

    import pytest
    import tensordict
    import tensordict.utils
    from tensordict import TensorDict, tensorclass
    from tensordict._private import _hidden
    from tensordict.base import TensorDictBase
    from tensordict.nn import NotThere

    @_hidden
    class Decorated:
        x: "int | None"

    class Derived(NotThere, shadow=True):
        pass

    def child(queue):
        import tensordict
        queue.put(tensordict.TensorDict.__module__)

    def test_public():
        assert isinstance(TensorDict({}, [2]), TensorDictBase)
        assert tensordict.utils.unravel_key(("a",)) == "a"

    def test_private():
        Decorated()

    def test_swallowed():
        with pytest.raises(Exception):
            _hidden(1)

    def test_attribute():
        TensorDict({}, [2])._no_such_thing

    def test_nn():
        Derived(3)

    def test_isinstance():
        assert not isinstance(3, NotThere)

    def test_crash():
        os._exit(3)

    @pytest.mark.skip
    def test_skipped():
        pass

    @pytest.mark.parametrize("x", [1, 2])
    def test_parametrised(x):
        assert x == 1, f"expected 1, found {x}"

    def test_spawned():
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        assert queue.get(timeout=60).startswith("tdcompile")
        process.join()
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "pytest.ini").write_text("[pytest]\n")
    tests = folder / "test"
    tests.mkdir()
    file = tests / "test_made_up.py"
    file.write_text(textwrap.dedent(MADE_UP))
    found = run.run_file(file, tests, folder / "record.jsonl", [], standin=True)
    return {test.rpartition("::")[2]: result for test, result in found.items()}


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("test_public", "passed"),
        ("test_private", "failed"),
        ("test_swallowed", "failed"),
        ("test_attribute", "failed"),
        ("test_nn", "failed"),
        ("test_isinstance", "passed"),
        ("test_crash", "error"),
        ("test_skipped", "skipped"),
        ("test_parametrised[1]", "passed"),
        ("test_parametrised[2]", "failed"),
        ("test_spawned", "passed"),
    ],
)
def test_made_up_test_has_its_outcome(results, test, outcome):
    assert results[test]["outcome"] == outcome


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("test_private", ("private", "_private._hidden")),
        ("test_swallowed", ("private", "_private._hidden")),
        ("test_attribute", ("private", "_no_such_thing")),
        ("test_nn", ("nn", "")),
        ("test_crash", ("other", "crash or hang")),
        ("test_parametrised[2]", ("other", "AssertionError")),
    ],
)
def test_failure_has_its_reason(results, test, reason):
    assert grouping.reason(f"test/utils/test_a.py::{test}", results[test]) == reason


def test_failure_keeps_the_text_of_the_error(results):
    assert "expected 1, found 2" in results["test_parametrised[2]"]["text"]


def test_file_that_cannot_be_imported_is_one_error(tmp_path):
    file = tmp_path / "test_broken.py"
    file.write_text("import no_such_module\n")
    found = run.run_file(file, tmp_path, tmp_path / "r.jsonl", [], standin=False)
    assert [result["outcome"] for result in found.values()] == ["error"]
    assert "no_such_module" in next(iter(found.values()))["text"]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("tensordict", "TensorDict"),
        ("tensordict.base", "TensorDictBase"),
        ("tensordict._td", "is_tensor_collection"),
        ("tensordict.utils", "unravel_key"),
    ],
)
def test_lookup_public_name_is_that_of_tdcompile(module, name):
    assert standin.lookup(module, name) is getattr(tdcompile, name)


def test_placeholder_use_raises_and_is_noted():
    name = standin.lookup("tensordict.base", "_hidden")
    before = len(standin.uses)
    with pytest.raises(standin.MissingName, match=r"tdcompile has no tensordict\.base\._hidden"):
        name(1)
    with pytest.raises(standin.MissingName):
        _ = name.attribute
    assert standin.uses[before:] == ["tensordict.base._hidden", "tensordict.base._hidden.attribute"]


def test_placeholder_at_import_is_harmless(tmp_path):
    source = tmp_path / "module_that_decorates.py"
    source.write_text(
        "import standin\n"
        "mark = standin.lookup('tensordict', 'not_there')\n"
        "@mark(True)\n"
        "def function():\n"
        "    return 1\n"
        "values = [mark(), mark.part(3), mark[int]]\n"
        "x: mark | None = None\n"
    )
    spec = importlib.util.spec_from_file_location("module_that_decorates", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(standin.MissingName, match="not_there"):
        module.function()


def result(outcome, **rest):
    return {"outcome": outcome, "error": "", "text": "", "missing": [], **rest}


def test_row_counts_what_the_reference_passes():
    names = ["a", "b", "c", "d", "to_pandas"]
    reference = {f"test/utils/test_a.py::{n}": result("passed") for n in names}
    reference["test/utils/test_a.py::e"] = result("failed")
    ours = {
        "test/utils/test_a.py::a": result("passed"),
        "test/utils/test_a.py::b": result("failed", error="ValueError"),
        "test/utils/test_a.py::c": result("skipped"),
        "test/utils/test_a.py::e": result("passed"),
    }
    row = grouping.row("test/utils/test_a.py", ours, reference)
    assert (row.reference, row.both, row.connectors, row.share) == (4, 1, 1, 25.0)
    assert row.counts == {"passed": 2, "failed": 1, "skipped": 1}
    assert {name[-1]: found["error"] for name, found in row.failing.items()} == {
        "b": "ValueError",
        "c": "skipped",
        "d": "not collected",
    }


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("test/memmap/test_h5.py::test_a", True),
        ("test/tensorclass/test_a.py::TestA::test_from_pandas", True),
        ("test/tensorclass/test_a.py::TestH5::test_a", True),
        ("test/tensorclass/test_a.py::test_a[td_h5-cpu]", True),
        ("test/tensorclass/test_a.py::test_restore_stored", False),
    ],
)
def test_connector_is_told_by_file_and_words(test, expected):
    assert grouping.is_connector(test) is expected


def test_page_groups_parametrised_tests_by_reason():
    failing = {
        "test/tensordict/test_a.py::TestA::test_x[td-cpu]": result("failed", missing=["_hidden"]),
        "test/tensordict/test_a.py::TestA::test_x[idx_td-cpu]": result(
            "failed", missing=["_hidden"]
        ),
        "test/tensordict/test_a.py::test_y": result("failed", error="ValueError"),
        "test/tensordict/test_a.py::test_z": result("failed", missing=["tensordict.nn.Module"]),
    }
    row = grouping.Row("test/tensordict/test_a.py", {"failed": 4}, 8, 4, failing)
    page = grouping.page([row], "Versions.")
    assert "| `tensordict/test_a.py` | 0 | 4 | 0 | 0 | 8 | 4 | 50.0 % |" in page
    assert "- **`_hidden`** (2): test_a: `TestA::test_x` 2\n" in page
    assert "- **`ValueError`** (1): test_a: `test_y`" in page
    assert "needs `tdcompile.nn`: 1" in page
    assert "| test/tensordict and test/memmap | 8 | 4 | 50.0 % | 57.1 % | 92 % |" in page


@pytest.mark.parametrize(
    ("parameters", "kind"),
    [
        ("[td-device0]", "td"),
        ("[nested_stacked_td-device0]", "nested_stacked_td"),
        ("[0-td_with_non_tensor_and_metadata-device0]", "td_with_non_tensor_and_metadata"),
        ("[3-False]", ""),
    ],
)
def test_kind_is_read_from_the_parameters(parameters, kind):
    assert grouping.kind(f"test/tensordict/test_a.py::test_x{parameters}") == kind
