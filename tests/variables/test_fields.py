from __future__ import annotations

import pytest
import torch
from helpers import guards_of

from tdcompile import TensorDict
from variables.checks import check, td


def named(value):
    return value.__name__.replace("_", "-") if callable(value) else str(value)


def flat(**kwargs):
    return TensorDict({"a": torch.ones(3, 2), "b": torch.ones(3)}, batch_size=[3], **kwargs)


VALUES = {
    "plain": flat,
    "locked": lambda: flat(lock=True),
    "device": lambda: flat(device="cpu"),
    "names": lambda: flat(names=["time"]),
    "all": lambda: flat(names=["time"], device="cpu", lock=True),
}


def ask_lock(td):
    return td["a"] + (1 if td.is_locked else 2)


def ask_device(td):
    return td["a"] + (1 if td.device is None else 2)


def ask_names(td):
    return td["a"] + (1 if td.names == ["time"] else 2)


def new_with_fields(td):
    return TensorDict(
        {"s": td["a"] + 1}, batch_size=td.batch_size, device=td.device, names=td.names
    )


@pytest.mark.parametrize(
    ("program", "graphs"),
    [(ask_lock, 2), (ask_device, 2), (ask_names, 2)],
    ids=lambda value: named(value),
)
@pytest.mark.parametrize("first", ["plain", "all"])
def test_field_asked_for_is_guarded(program, graphs, first):
    second = "all" if first == "plain" else "plain"
    check(program, [VALUES[name]() for name in (first, second, first, second)], graphs=graphs)


@pytest.mark.parametrize("value", VALUES)
def test_new_tensordict_with_fields_of_input_is_as_in_eager(value):
    check(new_with_fields, [VALUES[value](), VALUES[value]()])


def read(td):
    return td["a"] + 1


def leafwise(td):
    return td * 2 + td


def in_place(td):
    td *= 2
    return td


def copied(td):
    return td.copy(), td["a"] + 1


def reads_absent(td):
    return td.get("absent", None), td["a"] + 1


@pytest.mark.parametrize("program", [read, leafwise, in_place, copied, reads_absent], ids=named)
def test_fields_not_asked_for_all_states_compile_once(program):
    check(program, [make() for make in VALUES.values()])


@pytest.mark.parametrize("program", [read, leafwise, in_place, copied, reads_absent], ids=named)
def test_fields_not_asked_for_are_not_guarded(program):
    lines = "\n".join(guards_of(program, flat()))
    for field in ("_is_locked", "_device", "_names"):
        assert f"L['td'].{field}" not in lines


def lock(td):
    td["z"] = td["a"] + 1
    td.lock_()


def lock_new(td):
    return TensorDict({"s": td["a"] + 1, "n": td}, batch_size=[3]).lock_()


def unlock(td):
    td.unlock_()
    td["z"] = td["a"] + 1


def unlock_and_lock(td):
    td.unlock_()
    td["z"] = td["a"] + 1
    td.lock_()


def unlocked_block(td):
    with td.unlock_():
        td["z"] = td["a"] + 1
    return td


def locked_block(td):
    with td.lock_():
        td["a"].add_(1)
    td["z"] = td["b"] + 1


def set_names(td):
    td.names = ["batch"]
    return td["a"] + 1


def set_names_from_other(td, other):
    td.names = other.names
    return td["a"] + 1


def clear_device(td):
    td.clear_device_()
    td["z"] = td["a"] + 1


@pytest.mark.parametrize("program", [lock, set_names, locked_block], ids=named)
def test_write_of_field_is_replayed(program):
    # Locking and naming reach into nested tensordicts, so they depend on the key set.
    check(program, [td(), td(), td()])
    check(program, [flat(), flat()])


@pytest.mark.parametrize("program", [unlock, unlock_and_lock, unlocked_block], ids=named)
def test_unlock_is_replayed(program):
    check(program, [flat(lock=True), flat(lock=True)])


def test_clear_device_is_replayed():
    check(clear_device, [flat(device="cpu"), flat(device="cpu")])


def test_lock_of_new_tensordict_locks_input_inside():
    check(lock_new, [flat(), flat()])


@pytest.mark.parametrize("state", ["locked", "all"])
def test_in_place_writes_to_locked_are_allowed(state):
    def program(td):
        td["a"].mul_(2)
        td.set_("b", td["b"] + 1)
        td.update_({"a": td["a"] + 1})
        return td["a"] + 1

    check(program, [VALUES[state](), VALUES[state]()])


def test_write_to_device_moves_and_names_carry_over():
    def program(td):
        td["z"] = td["a"] + 1
        td["n"] = {"x": td["b"]}
        return td["n"]

    check(program, [flat(names=["time"], device="cpu"), flat(names=["time"], device="cpu")])


@pytest.mark.parametrize(
    "program",
    [
        lambda td: td + 1,
        lambda td: (td.copy(), td["a"] + 1),
        lambda td: (td.empty(), td["a"] + 1),
        lambda td: (td.select("a"), td["a"] + 1),
        lambda td: (td.exclude("a"), td["a"] + 1),
        lambda td: td.replace(a=td["a"] + 1),
    ],
    ids=["add", "copy", "empty", "select", "exclude", "replace"],
)
def test_names_carried_into_results_compile_once(program):
    check(program, [flat(names=["t"]), flat(names=["u"]), flat(names=[None]), flat()])


def test_child_of_locked_in_compiled_code_cannot_be_unlocked():
    # G14
    import tdcompile

    def program(td):
        td.lock_()
        return td["a"] + 1

    value = td()
    with tdcompile.install(strict=True):
        torch.compile(program, backend="eager", fullgraph=True)(value)
    with pytest.raises(RuntimeError, match="lock"):
        value["n"].unlock_()
    value.unlock_()
    value["n"]["z"] = torch.zeros(3)
