"""The narrowing passes as pure functions: lists of entries in, verdicts out, nothing compiled."""

from __future__ import annotations

import pytest

from tdcompile.guards.entries import GuardEntry
from tdcompile.guards.passes import PASSES

BY_NAME = {narrowing.name: narrowing for narrowing in PASSES}


def entry(kind="TENSOR_MATCH", name="L['td']", **facts):
    return GuardEntry(**{"kind": kind, "name": name, "root": "", "source": name} | facts)


def drops(name, *entries):
    return BY_NAME[name].drops(entries)


@pytest.mark.parametrize("narrowing", PASSES, ids=lambda narrowing: narrowing.name)
def test_pass_states_its_assumption_and_what_breaks_it(narrowing):
    assert narrowing.assumption
    assert narrowing.unsound_when


def test_pass_names_are_distinct():
    assert len(BY_NAME) == len(PASSES)


@pytest.mark.parametrize("narrowing", PASSES, ids=lambda narrowing: narrowing.name)
def test_pass_gives_one_verdict_an_entry(narrowing):
    assert narrowing.drops([]) == []
    entries = [entry(), entry("TYPE_MATCH"), entry("DICT_LENGTH", "L['td']._entries")]
    assert narrowing.drops(entries) == [False, False, False]


REGISTRY = "__import__('torch').utils._pytree.SUPPORTED_NODES"
OWN_ROOT = "__import_tdcompile_dot_tensordict_dot_mapping"


@pytest.mark.parametrize(
    ("root", "dropped"),
    [
        (OWN_ROOT, True),
        ("__import_tdcompile", True),
        ("__import_tdcompile_extras_dot_module", False),
        ("__import_tdcompile_dot_tensordict_dot_switches", False),
        ("__import_torch_dot_nn", False),
        ("__import_my_dot_tdcompile_dot_tools", False),
        ("__builtins_dict___0", False),
        ("tdcompile", False),
        ("", False),
    ],
)
def test_library_globals_drops_expressions_that_begin_at_our_modules(root, dropped):
    assert drops("library_globals", entry("ID_MATCH", f"G['{root}'].x", root=root)) == [dropped]


@pytest.mark.parametrize(
    ("root", "is_own", "dropped"),
    [
        ("__builtins_dict___0", True, True),
        ("__builtins_dict___7", True, True),
        ("__builtins_dict___0", False, False),
        ("len", True, False),
        ("", True, False),
    ],
)
def test_own_builtins_drops_builtins_of_our_frames_only(root, is_own, dropped):
    found = entry("ID_MATCH", f"G['{root}']['len']", root=root, is_own=is_own)
    assert drops("own_builtins", found) == [dropped]


@pytest.mark.parametrize(
    ("kind", "name", "dropped"),
    [
        ("DICT_KEYS_MATCH", f"{REGISTRY}", True),
        ("SEQUENCE_LENGTH", f"{REGISTRY}", True),
        ("DICT_VERSION", f"{REGISTRY}", True),
        ("DICT_CONTAINS", f"{REGISTRY}", True),
        ("DUPLICATE_INPUT", "G['__import_torch_dot_utils_dot__pytree'].SUPPORTED_NODES", True),
        ("ID_MATCH", f"list(dict.keys({REGISTRY}))[7]", True),
        ("TYPE_MATCH", f"{REGISTRY}[list(dict.keys(x))[7]]", True),
        ("SEQUENCE_LENGTH", "__import__('torch').utils._pytree.SUPPORTED_SERIALIZED_TYPES", False),
        ("SEQUENCE_LENGTH", f"{REGISTRY}_OF_MINE", False),
        ("EQUALS_MATCH", "G['cfg'].SUPPORTED_NODES['k']", False),
        ("EQUALS_MATCH", f"L['table'][list(dict.keys({REGISTRY}))[7]]", False),
        ("SEQUENCE_LENGTH", "L['SUPPORTED_NODES']", False),
    ],
)
def test_pytree_registry_drops_its_size_and_lookups_and_nothing_else(kind, name, dropped):
    assert drops("pytree_registry", entry(kind, name)) == [dropped]


def presence(key, source="entries", kind="DICT_CONTAINS"):
    return entry(kind, f"{source}", source=source, key=key)


def read(key, source="entries", kind="TENSOR_MATCH"):
    return entry(kind, f"{source}[{key!r}]", source=(source, key), parents=((source, key),))


def test_implied_presence_drops_presence_of_a_key_that_is_read():
    assert drops("implied_presence", presence("a"), read("a")) == [True, False]
    assert drops("implied_presence", read("a"), presence("a")) == [False, True]


def test_implied_presence_drops_where_something_below_the_key_is_read():
    deep = entry("TYPE_MATCH", "deep", source="deep", parents=(("x", None), ("entries", "n")))
    assert drops("implied_presence", presence("n"), deep) == [True, False]


@pytest.mark.parametrize(
    "other",
    [
        read("b"),
        read("a", source="other entries"),
        presence("a", source="other entries"),
        entry("TYPE_MATCH", "x", parents=(("entries", None),)),
        entry("DICT_LENGTH", "entries", source="entries"),
    ],
    ids=["other-key", "other-dict", "presence-elsewhere", "no-key-read", "length"],
)
def test_implied_presence_keeps_presence_without_a_read(other):
    assert drops("implied_presence", presence("a"), other) == [False, False]


def test_implied_presence_keeps_absence():
    absence = presence("a", kind="DICT_NOT_CONTAINS")
    assert drops("implied_presence", absence, read("a")) == [False, False]


def test_implied_presence_presence_alone_implies_nothing():
    # the presence of ("n", "x") is asked through n, by a guard that is itself a presence guard
    nested = entry("DICT_CONTAINS", "n entries", source="n", parents=(("entries", "n"),), key="x")
    assert drops("implied_presence", presence("n"), nested) == [False, False]
