"""The trackers serve a class they do not know: that of the reference package, by a layout."""

from __future__ import annotations

import operator
import warnings

import pytest
import tensordict
import torch
from helpers import guards_of

import tdcompile
from tdcompile.variables import registry
from tdcompile.variables.layout import Layout
from variables.checks import EXTRAS, check

Reference = tensordict.TensorDict


def rebuild(entries, batch_size, device, names, is_locked):
    """What a compiled frame calls for each tensordict it returns."""
    return Reference(entries, batch_size, device=device, names=names, lock=is_locked)


LAYOUT = Layout(
    cls=Reference,
    entries="_tensordict",
    batch_size="_batch_size",
    device="_device",
    names="_td_dim_names",
    is_locked="_is_locked",
    rebuild=rebuild,
)


@pytest.fixture(autouse=True)
def _registered():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        registry.register(LAYOUT)
        yield
        registry.unregister(Reference)


def named(value):
    return value.__name__.replace("_", "-") if callable(value) else str(value)


def ref(batch=3, **entries):
    source = {
        "a": torch.arange(batch * 2.0).reshape(batch, 2),
        "b": torch.arange(float(batch)),
        "n": Reference({"x": torch.ones(batch, 2), "y": torch.ones(batch)}, batch_size=[batch]),
    }
    return Reference(source | entries, batch_size=[batch])


def with_extras():
    inputs = []
    for names in EXTRAS:
        value = Reference({}, batch_size=[3])
        for i, name in enumerate(names[::2]):
            value[name] = torch.full((3,), float(i))
        for key, entry in ref().items():
            value[key] = entry
        for i, name in enumerate(names):
            value[name] = torch.full((3,), float(i))
            value["n"][name] = torch.zeros(3)
        inputs.append(value)
    return inputs


def set_item(td):
    td["z"] = td["a"] + 1


def set_method(td):
    td.set("z", td["a"] + 1)


def set_existing(td):
    td["a"] = td["b"] * 2


def set_nested(td):
    td["n", "x"] = td["a"] * 2


def set_nested_in_steps(td):
    td["n"]["z"] = td["n"]["x"] + td["a"]


def set_method_nested(td):
    td.set(("n", "z"), td["a"] * 2)


def set_new_nested(td):
    td["m", "k"] = td["a"] * 2


def update(td):
    td.update({"a": td["a"] + 1, "z": td["b"] * 2})


def delete(td):
    x = td["a"] + 1
    del td["a"]
    return x


def pop(td):
    return td.pop("a") + 1


def rename(td):
    td.rename_key_("a", "z")
    return td["z"] + 1


def set_in_place(td):
    td.set_("a", td["a"] + 1)


def returned(td):
    td["z"] = td["a"] + 1
    return td


def get_with_default(td):
    return td.get("absent", td["b"]) + 1


def contains(td):
    return td["a"] + (1 if "k" in td.keys() else 2)  # noqa: SIM118


@pytest.mark.parametrize(
    "program",
    [
        set_item,
        set_method,
        set_existing,
        set_nested,
        set_nested_in_steps,
        set_method_nested,
        set_new_nested,
        update,
        delete,
        pop,
        rename,
        set_in_place,
        returned,
        get_with_default,
        contains,
    ],
    ids=named,
)
def test_reference_write_other_keys_vary_compiles_once(program):
    check(program, with_extras())


OPERATORS = {
    name: getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "pow", "lt", "ge", "eq")
}
BITWISE = {name: getattr(operator, name) for name in ("and_", "or_", "xor")}
IN_PLACE = {name: getattr(operator, name) for name in ("iadd", "isub", "imul", "itruediv")}
OPERANDS = {
    "number": lambda: 3,
    "0-d": lambda: torch.tensor(3.0),
    "batch": lambda: torch.arange(1.0, 4),
    "int": lambda: torch.arange(1, 4),
    "td": lambda: ref() + 2,
}


ROWS = [
    (name, operand, side)
    for name in OPERATORS
    for operand in OPERANDS
    for side in ("left", "right")
    # The reference package has no reflected power.
    if (name, side) != ("pow", "right") or operand == "td"
]


@pytest.mark.parametrize(("name", "operand", "side"), ROWS)
def test_reference_operator_traces_whole(name, operand, side):
    function = OPERATORS[name]

    def left(td, x):
        return function(td, x)

    def right(td, x):
        return function(x, td)

    check(left if side == "left" else right, [(ref(), OPERANDS[operand]())])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", BITWISE)
def test_reference_bitwise_operator_traces_whole(name, side):
    function = BITWISE[name]

    def program(td, x):
        return function(td, x) if side == "left" else function(x, td)

    # Eagerly the reference aligns a batch-shaped operand of "|" and "^" but not of "&".
    check(program, [(ref().to(torch.int64), torch.tensor(3))])


@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("name", IN_PLACE)
def test_reference_in_place_operator_traces_whole(name, operand):
    def program(td, x):
        before = td["a"]
        td = IN_PLACE[name](td, x)
        return td, before

    check(program, [(ref(), OPERANDS[operand]())])


def test_reference_order_of_keys_varies_compiles_once():
    check(lambda td: td * 2, [ref().select(*order) for order in (("a", "b", "n"), ("n", "b", "a"))])


@pytest.mark.parametrize("dynamic", [True, None], ids=["dynamic", "automatic"])
def test_reference_batch_size_varies(dynamic):
    inputs = [ref(size) for size in (3, 4, 5, 6)]
    check(lambda td: td * 2, inputs, dynamic=dynamic, graphs=1 if dynamic else 2)


def test_reference_read_guards_are_type_and_leaf():
    lines = guards_of(lambda td: td["a"] + 1, ref())
    mine = [line.split("+- ")[1].split(":")[0] for line in lines if "L['td']" in line]
    assert [kind for kind in mine if kind != "DIMENSION_DYNAMIC_MARKING_GUARD"] == [
        "TYPE_MATCH",
        "TENSOR_MATCH",
    ]


def test_register_twice_is_refused_and_unregister_restores():
    with pytest.raises(ValueError, match="served already"):
        registry.register(LAYOUT)
    assert registry.unregister(Reference) is LAYOUT
    assert [layout.cls for layout in registry.registered_layouts()] == [tdcompile.TensorDict]
    with pytest.raises(KeyError):
        registry.unregister(Reference)
    registry.register(LAYOUT)
