from __future__ import annotations

import pytest
import torch

import tdcompile
from tdcompile import TensorDict
from variables.checks import check, duplicate, outcome_of, same, td


def named(value):
    return value.__name__.replace("_", "-") if callable(value) else str(value)


def absent(td):
    td["z"] = td["a"] + 1
    return td["absent"]


def absent_nested(td):
    td["z"] = td["a"] + 1
    return td["n", "absent"]


def absent_first_of_path(td):
    x = td["a"] + 1
    return td["absent", "x"] + x


def through_leaf(td):
    x = td["a"] + 1
    return td["a", "x"] + x


def delete_absent(td):
    td["z"] = td["a"] + 1
    del td["absent"]


def pop_absent(td):
    td["z"] = td["a"] + 1
    return td.pop("absent")


def rename_absent(td):
    td["z"] = td["a"] + 1
    td.rename_key_("absent", "y")


def rename_onto_existing_safe(td):
    td["z"] = td["a"] + 1
    td.rename_key_("a", "b", safe=True)


def select_absent(td):
    td["z"] = td["a"] + 1
    return td.select("absent")


def set_in_place_absent(td):
    td["z"] = td["a"] + 1
    td.set_("absent", td["a"])


def set_no_key(td):
    td["z"] = td["a"] + 1
    td.set(3, td["a"])


def does_not_fit(td):
    td["y"] = td["a"] + 1
    td["z"] = td["a"][:2]


def update_does_not_fit(td):
    td.update({"y": td["a"] + 1, "z": td["a"][:2]})


def set_through_leaf(td):
    td["y"] = td["a"] + 1
    td["a", "x"] = td["b"]


def no_attribute(td):
    td["z"] = td["a"] + 1
    return td.no_such_attribute


def set_attribute(td):
    td["z"] = td["a"] + 1
    td.no_such_attribute = 3


def own_error(td):
    td["z"] = td["a"] + 1
    raise ValueError(f"found {td.batch_size[0]} rows")


def add_other_keys(td):
    td["z"] = td["a"] + 1
    return td + td.select("a")


def operand_does_not_fit(td):
    td["z"] = td["a"] + 1
    return td + torch.ones(7)


def unsupported_operand(td):
    td["z"] = td["a"] + 1
    return td + "text"


PROGRAMS = [
    absent,
    absent_nested,
    absent_first_of_path,
    through_leaf,
    delete_absent,
    pop_absent,
    rename_absent,
    rename_onto_existing_safe,
    select_absent,
    set_in_place_absent,
    set_no_key,
    does_not_fit,
    update_does_not_fit,
    set_through_leaf,
    no_attribute,
    set_attribute,
    own_error,
    add_other_keys,
    operand_does_not_fit,
    unsupported_operand,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_exception_is_that_of_eager_and_leaves_the_same_state(program):
    calls = [(td(),), (td(p=torch.zeros(3)),)]
    expected = [outcome_of(program, args) for args in duplicate(calls)]
    assert all(outcome[1][1][0] == "raised" for outcome in expected)
    torch._dynamo.reset()
    with tdcompile.install(strict=True):
        compiled = torch.compile(program, backend="eager")
        found = [outcome_of(compiled, args) for args in calls]
    for eager, outcome in zip(expected, found, strict=True):
        assert not list(same(eager, outcome))


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_exception_caught_inside_leaves_the_same_state(program):
    def caught(td):
        try:
            program(td)
        except Exception as error:
            td["caught"] = td["b"] + 1
            return type(error).__name__, td["a"] + 1
        return None

    check(caught, [td(), td()])


def try_else_finally(td):
    try:
        x = td["absent"]
    except KeyError:
        x = td["a"] + 1
        td["from"] = x
    else:
        td["from"] = x + 2
    finally:
        td["z"] = td["b"] * 2
    return x


@pytest.mark.parametrize("order", ["present-first", "absent-first"])
def test_try_except_else_finally_follows_presence(order):
    makers = [td, lambda: td(absent=torch.full((3, 2), 8.0))]
    if order == "present-first":
        makers.reverse()
    check(try_else_finally, [make() for make in [*makers, *makers]], graphs=2)


def by_own_class(td):
    from tdcompile.errors import KeyPathError

    try:
        return td["absent"] + 1
    except KeyPathError:
        return td["a"] + 1


def message(td):
    try:
        return td["n", "absent"] + 1
    except KeyError as error:
        return td["a"] + 1, str(error)


def reraised(td):
    try:
        return td["absent"] + 1
    except KeyError as error:
        raise ValueError("no such entry") from error


def suppressed_in_loop(td):
    total = td["a"].sum()
    for key in ("a", "absent", "b", "other"):
        try:
            total = total + td[key].sum()
        except KeyError:
            td[key] = td["b"] + 1
    return total


@pytest.mark.parametrize("program", [by_own_class, message, suppressed_in_loop], ids=named)
def test_exception_handling_traces_whole(program):
    check(program, [td(), td()])


def test_exception_raised_anew_is_that_of_eager():
    torch._dynamo.reset()
    with tdcompile.install(strict=True):
        compiled = torch.compile(reraised, backend="eager")
        with pytest.raises(ValueError, match="no such entry") as info:
            compiled(td())
    assert isinstance(info.value.__cause__, KeyError)


def test_locked_write_inside_program_keeps_earlier_writes():
    def program(first, second):
        first["z"] = first["a"] + 1
        second["z"] = first["a"] + 2

    calls = [(td(), td().lock_()), (td(), td().lock_())]
    expected = [outcome_of(program, args) for args in duplicate(calls)]
    torch._dynamo.reset()
    with tdcompile.install(strict=True):
        compiled = torch.compile(program, backend="eager")
        found = [outcome_of(compiled, args) for args in calls]
    for eager, outcome in zip(expected, found, strict=True):
        assert not list(same(eager, outcome))


def test_error_text_names_path_and_keys():
    torch._dynamo.reset()
    with tdcompile.install(strict=True):
        compiled = torch.compile(absent_nested, backend="eager")
        with pytest.raises(KeyError) as info:
            compiled(td())
    assert "('n', 'absent')" in str(info.value)
    assert "['x', 'y']" in str(info.value)


def test_tensordict_under_construction_falls_back_to_eager():
    # A function that gets an object whose constructor has not run has no state to track.
    made = TensorDict.__new__(TensorDict)

    def program(value, x):
        value.__init__({"a": x}, batch_size=[3])
        return x + 1

    torch._dynamo.reset()
    with tdcompile.install(strict=True):
        torch.compile(program, backend="eager")(made, torch.ones(3))
    assert list(made.keys()) == ["a"]
