from __future__ import annotations

import pytest
import torch
from helpers import guards_of

import tdcompile
from tdcompile import TensorDict
from variables.checks import check, td, with_extras


def named(value):
    return value.__name__.replace("_", "-") if callable(value) else str(value)


def get_item(td):
    return td["a"] + 1


def get_method(td):
    return td.get("a") + 1


def get_with_default(td):
    return td.get("a", td["b"]) + 1


def get_absent_with_default(td):
    return td.get("absent", td["b"]) + 1


def get_absent_is_none(td):
    return td.get("absent") is None, td["b"] + 1


def get_nested(td):
    return td["n", "x"] + 1


def get_nested_in_steps(td):
    return td["n"]["x"] + 1


def get_nested_deep_tuple(td):
    return td[("n", ("x",))] + 1


def get_nested_absent(td):
    return td.get(("n", "absent"), td["b"]) + 1


def read_and_write(td):
    td["a"] = td["a"] + 1
    return td["a"] * 2


def written_twice(td):
    td["a"] = td["a"] + 1
    td["a"] = td["a"] + td["b"].unsqueeze(-1)
    return td


def locked_read(td):
    return td["a"] + 1


@pytest.mark.parametrize(
    "program",
    [
        get_item,
        get_method,
        get_with_default,
        get_absent_with_default,
        get_absent_is_none,
        get_nested,
        get_nested_in_steps,
        get_nested_deep_tuple,
        get_nested_absent,
        read_and_write,
        written_twice,
    ],
    ids=named,
)
def test_read_other_keys_vary_compiles_once(program):
    check(program, with_extras())


def test_written_twice_by_the_same_function_compiles_once():
    # R4: the second call finds the keys that the first call made.
    def program(td):
        td["z"] = td["a"] + 1
        td["n", "z"] = td["a"] * 2

    first = td()
    report = check(program, [first, first, first])
    assert report.num_nodes == 2
    assert list(first.keys()) == ["a", "b", "n", "z"]


# ---- R13, R2: presence ---------------------------------------------------------------------------


def get_or_default(td, x):
    return td.get("k", x) + 1


def get_or_number(td):
    found = td.get("k", None)
    return td["a"] + (1 if found is None else 2)


def contains(td):
    return td["a"] + 1 if "k" in td.keys() else td["a"] + 2  # noqa: SIM118


def contains_method(td):
    return td["a"] + 1 if "k" in td else td["a"] + 2


def contains_nested(td):
    return td["a"] + 1 if ("n", "k") in td.keys(True) else td["a"] + 2


def try_except(td):
    try:
        return td["k"] + 1
    except KeyError:
        return td["a"] + 2


@pytest.mark.parametrize("order", ["present-first", "absent-first"])
@pytest.mark.parametrize(
    "program",
    [get_or_default, get_or_number, contains, contains_method, contains_nested, try_except],
    ids=named,
)
def test_presence_varies_compiles_twice_and_is_right(program, order):
    def absent():
        return td()

    def present():
        value = td(k=torch.full((3, 2), 5.0))
        value["n", "k"] = torch.zeros(3)
        return value

    makers = [present, absent] if order == "present-first" else [absent, present]
    more = (torch.ones(3, 2),) if program is get_or_default else ()
    check(program, [(make(), *more) for make in [*makers, *makers]], graphs=2)


@pytest.mark.parametrize("program", [contains, contains_method, contains_nested], ids=named)
@pytest.mark.parametrize("is_there", [True, False], ids=["present", "absent"])
def test_contains_other_keys_vary_compiles_once(program, is_there):
    def make():
        value = td(k=torch.zeros(3)) if is_there else td()
        if is_there:
            value["n", "k"] = torch.zeros(3)
        return value

    check(program, with_extras(make))


def written_then_asked(td):
    td["k"] = td["a"] + 1
    return "k" in td.keys(), td.get("k", None) + 1  # noqa: SIM118


def deleted_then_asked(td):
    x = td["a"] + 1
    del td["a"]
    return "a" in td.keys(), td.get("a", x)  # noqa: SIM118


@pytest.mark.parametrize("program", [written_then_asked, deleted_then_asked], ids=named)
def test_presence_after_edit_is_answered_by_the_log(program):
    check(program, [*with_extras(), (td(k=torch.zeros(3)),)])


# ---- R12: state that a program does not ask for --------------------------------------------------


def add_one(td):
    return td + 1


def write(td):
    td["z"] = td["a"] + 1


def in_place(td):
    td["a"].add_(1)
    return td["b"] * 2


def locked():
    return td().lock_()


def with_device():
    value = td()
    return TensorDict(dict(value.items()), batch_size=[3], device="cpu")


def with_names():
    return TensorDict(dict(td(nested=False).items()), batch_size=[3], names=["time"])


STATES = {"plain": td, "locked": locked, "device": with_device, "names": with_names}


@pytest.mark.parametrize("program", [get_item, add_one, in_place], ids=named)
@pytest.mark.parametrize("state", ["locked", "device", "names"])
@pytest.mark.parametrize("order", ["plain-first", "plain-last"])
def test_state_not_asked_for_compiles_once_and_is_carried(program, state, order):
    def plain():
        return td(nested=state != "names")

    makers = [plain, STATES[state]] if order == "plain-first" else [STATES[state], plain]
    check(program, [make() for make in makers])


@pytest.mark.parametrize("order", ["plain-first", "locked-first"])
def test_write_to_locked_raises_as_in_eager(order):
    makers = [td, locked] if order == "plain-first" else [locked, td]
    torch._dynamo.reset()
    with tdcompile.install(strict=True):
        compiled = torch.compile(write, backend="eager")
        for make in [*makers, *makers]:
            value = make()
            if value.is_locked:
                with pytest.raises(RuntimeError, match="lock"):
                    compiled(value)
                assert list(value.keys()) == ["a", "b", "n"]
            else:
                compiled(value)
                assert torch.equal(value["z"], value["a"] + 1)


# ---- what a key holds changes --------------------------------------------------------------------


def pass_on(td):
    td["z"] = td["k"]
    return td["a"] + 1


def use_kind(td):
    found = td.get("k")
    if isinstance(found, torch.Tensor):
        return td["a"] + found
    if isinstance(found, TensorDict):
        return td["a"] + found["x"]
    return td["a"] + 10


KINDS = {
    "tensor": lambda: torch.full((3, 2), 4.0),
    "nested": lambda: TensorDict({"x": torch.full((3, 2), 5.0)}, batch_size=[3]),
    "string": lambda: "text",
}


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("program", [pass_on, use_kind], ids=named)
def test_kind_of_entry_varies_is_right(program, first):
    order = [first, *(kind for kind in KINDS if kind != first)]
    inputs = [td(k=KINDS[kind]()) for kind in [*order, *order]]
    check(program, inputs, graphs=3)


def read_string(td):
    return td["a"] + len(td["k"])


def carry_string(td):
    return td + 1


def carry_string_by_copy(td):
    other = td.copy()
    other["z"] = td["a"] + 1
    return other


STRINGS = ("one", "three", "fifteen", "")


@pytest.mark.parametrize("program", [carry_string, carry_string_by_copy], ids=named)
def test_non_tensor_carried_compiles_once(program):
    # R10
    check(program, [td(k=text) for text in STRINGS])


def test_non_tensor_read_is_guarded():
    check(read_string, [td(k=text) for text in (*STRINGS, *STRINGS)], graphs=len(STRINGS))


# ---- guards --------------------------------------------------------------------------------------


def bare_read(a):
    return a + 1


def read_two(td):
    return td["a"] + td["b"].unsqueeze(-1)


def bare_two(a, b):
    return a + b.unsqueeze(-1)


# A write asks for lock, device and the number of batch dimensions (of a torch.Size); for no key.
WRITE_GUARDS = ["FALSE_MATCH", "LENGTH_CHECK", "NONE_MATCH", "TYPE_MATCH", "TYPE_MATCH"]


def kinds(lines):
    return sorted(line.split("+- ")[1].split(":")[0] for line in lines)


@pytest.mark.parametrize(
    ("program", "bare", "leaves", "extra"),
    [
        (get_item, bare_read, "a", ["TYPE_MATCH"]),
        (get_method, bare_read, "a", ["TYPE_MATCH"]),
        (read_two, bare_two, "ab", ["TYPE_MATCH"]),
        (get_or_number, bare_read, "a", ["DICT_CONTAINS", "TYPE_MATCH"]),
        (write, bare_read, "a", WRITE_GUARDS),
    ],
    ids=["read", "get", "read-two", "get-absent", "write"],
)
def test_guards_are_those_of_bare_tensors_and_what_was_asked(program, bare, leaves, extra):
    value = td()
    base = kinds(guards_of(bare, *(value[key] for key in leaves)))
    assert kinds(guards_of(program, value)) == sorted([*base, *extra])


@pytest.mark.parametrize("program", [get_item, get_nested, write], ids=named)
def test_guards_do_not_grow_with_untouched_keys(program):
    many = td(**{f"k{i}": torch.zeros(3) for i in range(1000)})
    few = guards_of(program, td())
    assert kinds(guards_of(program, many)) == kinds(few)


@pytest.mark.parametrize("program", [get_item, write, add_one], ids=named)
def test_nodes_do_not_depend_on_untouched_keys(program):
    report = check(program, [td(nested=False)])
    assert report.num_nodes == (2 if program is add_one else 1)
