"""Keys: normalised as the oracle does; what is no key is refused by name."""

from __future__ import annotations

import pytest
import tensordict as oracle

from tdcompile.errors import InvalidKeyError, KeyPathError
from tdcompile.tensordict import unravel_key, unravel_key_list, unravel_key_to_tuple
from tdcompile.tensordict.keys import format_entry, format_key

KEYS = ["a", "", ("a",), ("a", "b"), ("a", ("b", ("c",))), (("a",),), (("a", "b"), "c"), "a.b"]
NO_KEYS = [3, None, (), ("a", 3), ["a"], ("a", ()), b"x", ("a", None)]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_unravel_key_valid_matches_oracle(key):
    assert unravel_key(key) == oracle.unravel_key(key)
    assert unravel_key_to_tuple(key) == oracle.unravel_key_to_tuple(key)


@pytest.mark.parametrize("key", NO_KEYS, ids=repr)
def test_unravel_key_invalid_names_what_was_found(key):
    with pytest.raises(InvalidKeyError, match=r"expected a key.*found"):
        unravel_key(key)
    with pytest.raises(InvalidKeyError):
        unravel_key_to_tuple(key)


def test_invalid_key_error_is_key_type_and_runtime_error():
    assert issubclass(InvalidKeyError, (KeyPathError,))
    for kind in (KeyError, TypeError, RuntimeError):
        assert issubclass(InvalidKeyError, kind)


def test_invalid_key_message_names_the_piece_and_the_whole():
    with pytest.raises(InvalidKeyError) as info:
        unravel_key(("a", ("b", 3)))
    assert "found 3 of type int inside ('a', ('b', 3))" in str(info.value)


@pytest.mark.parametrize("make", [list, tuple])
def test_unravel_key_list_matches_oracle(make):
    keys = make(["a", ("a", ("b",)), (("c",),)])
    assert unravel_key_list(keys) == oracle.unravel_key_list(keys)


@pytest.mark.parametrize("keys", ["abc", 3, {"a"}], ids=repr)
def test_unravel_key_list_of_no_list_raises_type_error(keys):
    with pytest.raises(TypeError, match="expected a list or a tuple of keys"):
        unravel_key_list(keys)


@pytest.mark.parametrize(
    ("path", "key", "entry"),
    [
        (("a",), "'a'", 'td["a"]'),
        (("a", "b"), "('a', 'b')", 'td["a", "b"]'),
        ("a", "'a'", 'td["a"]'),
        (('a"',), "'a\"'", 'td["a\\""]'),
    ],
)
def test_format_prints_code(path, key, entry):
    assert format_key(path) == key
    assert format_entry(path) == entry
