from __future__ import annotations

import pytest

from tdcompile.backend import TensorDictBackend, list_mode_options, list_options
from tdcompile.backend.options import CompileSettings, parse_options
from tdcompile.backend.passes import PASS_NAMES
from tdcompile.errors import UnknownOptionError


def test_no_options_are_the_defaults():
    assert parse_options() == CompileSettings()
    assert CompileSettings().passes == PASS_NAMES


def test_keys_are_split_and_the_callers_dict_is_not_changed():
    options = {"tdcompile.audit": True, "epilogue_fusion": False, "max-autotune": True}
    before = dict(options)
    found = parse_options("reduce-overhead", options)
    assert found.audit is True
    assert found.mode == "reduce-overhead"
    assert found.inductor == {"epilogue_fusion": False, "max_autotune": True}
    assert options == before


def test_mode_as_an_option_goes_with_other_options():
    found = parse_options(options={"tdcompile.mode": "max-autotune", "epilogue_fusion": True})
    assert (found.mode, found.inductor) == ("max-autotune", {"epilogue_fusion": True})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tdcompile.audti": True}, r"got 'tdcompile.audti'; near names: tdcompile.audit"),
        ({"epilog_fusion": True}, r"got 'epilog_fusion'; near names: .*epilogue_fusion"),
        ({"triton.cudagraph": True}, r"near names: .*triton.cudagraphs"),
        ({"audit": True}, r"got 'audit'; near names: .*tdcompile.audit"),
        ({"qqqqqqqq": 1}, r"got 'qqqqqqqq'; no name is near it"),
        ({"tdcompile.audit": 1}, r"'tdcompile.audit': expected True or False, got 1"),
        (
            {"tdcompile.passes": "merge_views"},
            r"'tdcompile.passes': expected a tuple .*merge_views",
        ),
        ({"tdcompile.passes": ("no",)}, r"'tdcompile.passes': expected a tuple .*got \('no',\)"),
        ({"tdcompile.mode": "fast"}, r"'tdcompile.mode': expected a name of list_mode_options"),
    ],
    ids=["ours", "inductor", "nested", "prefix", "far", "flag", "no-list", "pass", "mode"],
)
def test_unknown_name_or_value_raises_with_near_names(options, text):
    before = dict(options)
    with pytest.raises(UnknownOptionError, match=text):
        parse_options(options=options)
    with pytest.raises(UnknownOptionError, match=text):
        TensorDictBackend(options=options)
    assert options == before


def test_unknown_mode_raises_with_near_names():
    with pytest.raises(UnknownOptionError, match="got 'max-autotun'; near names: max-autotune"):
        parse_options("max-autotun")
    with pytest.raises(UnknownOptionError, match="list_mode_options"):
        list_mode_options("max-autotun")


def test_passes_run_in_the_tables_order():
    assert (
        parse_options(options={"tdcompile.passes": list(reversed(PASS_NAMES))}).passes == PASS_NAMES
    )
    assert parse_options(options={"tdcompile.passes": ()}).passes == ()


def test_lists_name_what_there_is():
    names = list_options()
    assert {"tdcompile.audit", "tdcompile.mode", "tdcompile.passes", "epilogue_fusion"} <= set(
        names
    )
    assert all(names.values())
    assert list_mode_options()["reduce-overhead"] == list_mode_options("reduce-overhead")
    for name in names:
        if name.startswith("tdcompile."):
            with pytest.raises(UnknownOptionError, match=f"option '{name}': expected"):
                parse_options(options={name: object()})
