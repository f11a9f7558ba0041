from __future__ import annotations

import pytest

from tdcompile.config import Settings, read_settings
from tdcompile.errors import UnknownOptionError


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Settings()),
        ({"PATH": "x"}, Settings()),
        ({"TDCOMPILE_DISABLE": "1"}, Settings(disable=True)),
        ({"TDCOMPILE_AUDIT": "1", "TDCOMPILE_DISABLE": "0"}, Settings(audit=True)),
        ({"TDCOMPILE_AUDIT": ""}, Settings()),
    ],
    ids=["empty", "foreign", "disable", "audit", "empty-value"],
)
def test_read_settings_legal_values_are_read(environ, expected):
    assert read_settings(environ) == expected


def test_read_settings_illegal_value_lists_the_legal_ones():
    with pytest.raises(
        UnknownOptionError, match=r"TDCOMPILE_AUDIT: expected one of 0, 1, got 'yes'"
    ):
        read_settings({"TDCOMPILE_AUDIT": "yes"})


def test_read_settings_unknown_switch_lists_the_switches():
    with pytest.raises(
        UnknownOptionError, match=r"TDCOMPILE_DISABEL .*TDCOMPILE_AUDIT, TDCOMPILE_DISABLE"
    ):
        read_settings({"TDCOMPILE_DISABEL": "1"})


def test_settings_are_frozen():
    with pytest.raises(AttributeError):
        Settings().audit = True
