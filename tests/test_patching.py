from __future__ import annotations

import threading
import types

import pytest

from tdcompile.errors import PatchConflictError
from tdcompile.patching import ABSENT, Patch, PatchSet, TablePatch

WHY = "the test needs it"


class Parent:
    value = 1

    @staticmethod
    def plain(x):
        return x

    def method(self):
        return "stock"


class Child(Parent):
    pass


def attribute(target=Parent, name="value", **rest):
    rest.setdefault("reason", WHY)
    if "wrap" not in rest:
        rest.setdefault("replacement", 2)
    return Patch(target=target, name=name, **rest)


def entry(table, key="k", replacement="ours", **rest):
    return TablePatch(table=table, key=key, replacement=replacement, reason=WHY, **rest)


@pytest.fixture
def box():
    return types.SimpleNamespace(a=1, b=2)


def test_patch_applied_and_undone_gives_back_the_same_object():
    before = dict(vars(Parent))
    patches = PatchSet("s", [attribute(), attribute(name="plain", wrap=lambda old: old)])
    patches.apply()
    assert Parent.value == 2
    patches.undo()
    assert dict(vars(Parent)) == before
    assert vars(Parent)["plain"] is before["plain"]
    assert isinstance(vars(Parent)["plain"], staticmethod)


def test_patch_of_inherited_attribute_becomes_inherited_again():
    with PatchSet("s", [attribute(Child)]):
        assert (Child.value, Parent.value) == (2, 1)
    assert "value" not in vars(Child)
    assert Child.value == 1


def test_wrap_gets_the_original_and_forwards():
    def wrap(old):
        def method(*args, **kwargs):
            return f"ours over {old(*args, **kwargs)}"

        return method

    with PatchSet("s", [attribute(name="method", wrap=wrap)]):
        assert Parent().method() == "ours over stock"
    assert Parent().method() == "stock"


def test_apply_absent_attribute_raises_and_changes_nothing(box):
    patches = PatchSet("s", [attribute(box, "a"), attribute(box, "gone")])
    with pytest.raises(PatchConflictError, match=r"gone: expected an attribute.*found none"):
        patches.apply()
    assert vars(box) == {"a": 1, "b": 2}
    assert not patches.is_applied


def test_apply_absent_attribute_allowed_is_removed_again(box):
    with PatchSet("s", [attribute(box, "new", may_be_absent=True)]):
        assert box.new == 2
    assert vars(box) == {"a": 1, "b": 2}


def test_apply_unexpected_value_raises(box):
    with pytest.raises(PatchConflictError, match=r"expected 7, found 1"):
        PatchSet("s", [attribute(box, "a", expected=7)]).apply()


def test_failing_wrap_undoes_what_came_before_it(box):
    def wrap(old):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        PatchSet("s", [attribute(box, "a"), attribute(box, "b", wrap=wrap)]).apply()
    assert vars(box) == {"a": 1, "b": 2}


def test_nested_use_is_counted(box):
    patches = PatchSet("s", [attribute(box, "a", replacement=5)])
    with patches:
        with patches:
            assert box.a == 5
        assert box.a == 5
        assert patches.is_applied
    assert box.a == 1
    assert not patches.is_applied


def test_undo_twice_is_harmless(box):
    patches = PatchSet("s", [attribute(box, "a")]).apply()
    patches.undo()
    patches.undo()
    assert box.a == 1


def test_undo_after_foreign_change_raises_and_changes_nothing(box):
    patches = PatchSet("s", [attribute(box, "a"), attribute(box, "b", replacement=3)]).apply()
    box.a = "foreign"
    with pytest.raises(PatchConflictError, match=r"\.a: expected 2, found 'foreign'"):
        patches.undo()
    assert vars(box) == {"a": "foreign", "b": 3}
    assert patches.is_applied
    box.a = 2
    patches.undo()
    assert vars(box) == {"a": 1, "b": 2}


def test_exception_in_with_block_undoes(box):
    with pytest.raises(ValueError, match="body"), PatchSet("s", [attribute(box, "a")]):
        raise ValueError("body")
    assert box.a == 1


def test_table_entry_absent_before_is_absent_after():
    table = {"x": 1}
    with PatchSet("s", [entry(table)]):
        assert table == {"x": 1, "k": "ours"}
    assert table == {"x": 1}


def test_table_entry_taken_raises():
    table = {"k": "theirs"}
    with pytest.raises(PatchConflictError, match=r"expected no entry, found 'theirs'"):
        PatchSet("s", [entry(table)]).apply()
    assert table == {"k": "theirs"}


def test_table_entry_displaced_comes_back_in_its_place():
    theirs = object()
    table = {"k": theirs, "x": 1}
    with PatchSet("s", [entry(table, may_replace=True)]):
        assert table["k"] == "ours"
    assert list(table) == ["k", "x"]
    assert table["k"] is theirs


def test_table_emptied_by_its_owner_is_no_conflict():
    table = {}
    with PatchSet("s", [entry(table)]):
        table.clear()
    assert table == {}


def test_after_is_called_at_apply_and_at_undo_once_each(box):
    calls = []
    patches = PatchSet("s", [attribute(box, "a")], after=[lambda: calls.append(box.a)])
    with patches, patches:
        pass
    assert calls == [2, 1]


def test_merged_set_is_all_or_nothing(box):
    merged = PatchSet.merged(
        "all", [PatchSet("one", [attribute(box, "a")]), PatchSet("two", [attribute(box, "gone")])]
    )
    with pytest.raises(PatchConflictError):
        merged.apply()
    assert vars(box) == {"a": 1, "b": 2}


def test_two_patches_of_one_place_are_refused(box):
    with pytest.raises(ValueError, match=r"patches .*\.a twice"):
        PatchSet("s", [attribute(box, "a"), attribute(box, "a")])


@pytest.mark.parametrize(
    "given", [{}, {"replacement": 1, "wrap": lambda old: old}], ids=["neither", "both"]
)
def test_patch_needs_exactly_one_of_replacement_and_wrap(box, given):
    with pytest.raises(ValueError, match="exactly one of replacement and wrap"):
        Patch(target=box, name="a", reason=WHY, **given)


def test_none_is_a_legal_replacement(box):
    with PatchSet("s", [attribute(box, "a", replacement=None)]):
        assert box.a is None
    assert box.a == 1


def test_threads_share_the_count(box):
    patches = PatchSet("s", [attribute(box, "a", replacement=9)])
    barrier = threading.Barrier(4)
    seen = []

    def work():
        barrier.wait()
        for _ in range(200):
            with patches:
                seen.append(box.a)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {9}
    assert box.a == 1
    assert not patches.is_applied


def test_absent_prints_readably():
    assert repr(ABSENT) == "<absent>"
