from __future__ import annotations

import pytest
import torch

from tdcompile._compat import version


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.13.0", (2, 13, 0)),
        ("2.13.0+cpu", (2, 13, 0)),
        ("2.14.0a0+git1234abc", (2, 14, 0)),
        ("2.14.1.dev20260401+cu126", (2, 14, 1)),
        ("2.15", (2, 15, 0)),
        ("2.15.0rc2", (2, 15, 0)),
        ("v2.15.0.post1", (2, 15, 0)),
        ("10.0.3.4", (10, 0, 3)),
    ],
)
def test_parse_release_takes_the_release_part(text, expected):
    assert version.parse_release(text) == expected


def test_parse_release_without_number_raises():
    with pytest.raises(ValueError, match=r"expected a version such as '2.13.0', got 'main'"):
        version.parse_release("main")


def test_installed_torch_is_read():
    assert str(torch.__version__).startswith(".".join(map(str, version.torch_version())))


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ((2, 12, 9), False),
        ((2, 13, 0), True),
        ((2, 14, 1), True),
        ((2, 15, 7), True),
        ((2, 16, 0), False),
        ((3, 0, 0), False),
    ],
    ids=str,
)
def test_is_supported_covers_the_range_and_no_more(release, expected):
    assert version.is_supported(release) is expected


def test_torch_at_least_compares_numbers_not_text():
    assert version.torch_at_least(2, 9)
    assert version.torch_at_least(*version.torch_version()[:2])
    assert not version.torch_at_least(2, 100)
