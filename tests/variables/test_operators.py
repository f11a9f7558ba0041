from __future__ import annotations

import operator

import pytest
import torch

from tdcompile import TensorDict
from variables.checks import check, td


def numbers(dtype=torch.float32):
    """Leaves of several ranks, one nested; batch size (3, 2)."""
    a = torch.arange(1, 25).reshape(3, 2, 4)
    b = torch.arange(1, 7).reshape(3, 2)
    x = torch.arange(2, 32).reshape(3, 2, 5)
    nested = TensorDict({"x": x.to(dtype)}, batch_size=[3, 2])
    return TensorDict({"a": a.to(dtype), "b": b.to(dtype), "n": nested}, batch_size=[3, 2])


def other(dtype=torch.float32):
    """The same keys in another order."""
    value = numbers(dtype) + 2
    return value.select("n", "b", "a")


OPERANDS = {
    "number": lambda dtype: 3,
    "0-d": lambda dtype: torch.tensor(3, dtype=dtype),
    "batch": lambda dtype: torch.arange(1, 7).reshape(3, 2).to(dtype),
    "row": lambda dtype: torch.arange(1, 3).to(dtype),
    "int": lambda dtype: torch.arange(1, 7).reshape(3, 2),
    "td": other,
}

FLOAT_OPERATORS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "pow": operator.pow,
}
COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
BITWISE = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
IN_PLACE = {name: getattr(operator, name) for name in ("iadd", "isub", "imul", "itruediv", "ipow")}
IN_PLACE_BITWISE = {name: getattr(operator, name) for name in ("iand", "ior", "ixor")}


def apply(function, side):
    if side == "left":
        return lambda td, operand: function(td, operand)
    return lambda td, operand: function(operand, td)


SIDES = ["left", "right"]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("name", [*FLOAT_OPERATORS, *COMPARISONS])
def test_operator_traces_whole(name, operand, side):
    # G1: one graph, one node a leaf beside the views that align an operand.
    function = (FLOAT_OPERATORS | COMPARISONS)[name]
    dtype = torch.float32
    check(apply(function, side), [(numbers(), OPERANDS[operand](dtype))] * 2)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("operand", ["number", "0-d", "batch", "td"])
@pytest.mark.parametrize("name", BITWISE)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=["int", "bool"])
def test_bitwise_operator_traces_whole(name, operand, side, dtype):
    value = True if operand == "number" and dtype is torch.bool else OPERANDS[operand](dtype)
    check(apply(BITWISE[name], side), [(numbers(dtype), value)] * 2)


@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_operator_traces_whole_and_keeps_leaves(name, operand):
    def program(td, operand):
        before = td["a"]
        td = IN_PLACE[name](td, operand)
        return td, before

    value = OPERANDS[operand](torch.float32)
    check(program, [(numbers(), value), (numbers(), value)])


@pytest.mark.parametrize("operand", ["number", "0-d", "batch", "td"])
@pytest.mark.parametrize("name", IN_PLACE_BITWISE)
def test_in_place_bitwise_operator_traces_whole(name, operand):
    def program(td, operand):
        return IN_PLACE_BITWISE[name](td, operand)

    check(program, [(numbers(torch.int64), OPERANDS[operand](torch.int64))])


def add_statement(td, x):
    td += x
    return td


def sub_statement(td, x):
    td -= x


def tensor_statement(td, x):
    # `x -= td` is no in-place write to a tensor; it rebinds the name.
    x -= td
    return x


@pytest.mark.parametrize("operand", ["number", "0-d", "batch", "td"])
@pytest.mark.parametrize(
    "program",
    [add_statement, sub_statement, tensor_statement],
    ids=lambda p: p.__name__.replace("_", "-"),
)
def test_statement_with_operator_traces_whole(program, operand):
    check(program, [(numbers(), OPERANDS[operand](torch.float32))])


@pytest.mark.parametrize(
    "program",
    [
        lambda td: -td,
        lambda td: abs(td),
        lambda td: ~(td > 3),
        lambda td: +td if hasattr(td, "__pos__") else -td,
    ],
    ids=["neg", "abs", "invert", "pos"],
)
def test_unary_operator_traces_whole(program):
    check(program, [numbers(), numbers()])


@pytest.mark.parametrize(
    "program",
    [
        lambda td, t: (td * t + t * td - 1) / 2,
        lambda td, t: 1 - td * t,
        lambda td, t: 2 ** (td / 10),
        lambda td, t: 1 / td,
        lambda td, t: (td > t) & (td < 10),
        lambda td, t: (td == td).all() if False else (td == td),
        lambda td, t: td["n"] * t,
        lambda td, t: t * td["n"] + td["n"],
        lambda td, t: torch.mul(td, t) + torch.add(td, 1),
        lambda td, t: td.add(t).mul(2).sub(t),
        lambda td, t: td.add(t, alpha=2),
    ],
    ids=[
        "chain",
        "number-minus",
        "number-power",
        "number-over",
        "comparison-and",
        "with-itself",
        "nested-alone",
        "nested-tensor-left",
        "torch-functions",
        "methods",
        "keyword",
    ],
)
def test_expression_traces_whole(program):
    report = check(program, [(numbers(), torch.arange(1.0, 7).reshape(3, 2))] * 2)
    assert len(report.graphs) == 1


@pytest.mark.parametrize(
    "program",
    [lambda td: td + 1, lambda td: td * td, lambda td: td.exp(), lambda td: td + td["b"]],
    ids=["number", "td", "unary", "leaf"],
)
def test_order_of_keys_varies_compiles_once_result_keeps_own_order(program):
    # R5
    orders = [("a", "b", "n"), ("n", "a", "b"), ("b", "n", "a"), ("n", "b", "a")]
    check(program, [td().select(*order) for order in orders])


def test_order_of_keys_of_second_operand_varies_compiles_once():
    def program(left, right):
        return left + right

    orders = [("a", "b", "n"), ("n", "a", "b"), ("b", "n", "a")]
    check(
        program,
        [(td().select(*first), td().select(*second)) for first in orders for second in orders],
    )


def test_order_of_nested_keys_varies_compiles_once():
    def program(td):
        return td * 2

    inputs = []
    for order in (("x", "y"), ("y", "x")):
        value = td()
        value["n"] = value["n"].select(*order)
        inputs.append(value)
    check(program, inputs)


def test_key_set_varies_compiles_once_a_set():
    # R6
    def program(td):
        return td + 1

    inputs = [td(), td(z=torch.zeros(3)), td(nested=False), td(), td(z=torch.zeros(3))]
    check(program, inputs, graphs=3)


@pytest.mark.parametrize("keys", [2, 30], ids=["few", "many"])
def test_nodes_are_one_a_leaf(keys):
    value = TensorDict({f"k{i}": torch.ones(3, 2) for i in range(keys)}, batch_size=[3])
    assert check(lambda td: td * 2, [value]).num_nodes == keys
    # a batch-shaped operand is aligned once for all leaves of a rank
    assert check(lambda td, t: t * td, [(value, torch.ones(3))]).num_nodes == keys + 1


def test_new_key_set_of_second_operand_raises_as_in_eager():
    def program(left, right):
        try:
            return left + right
        except KeyError:
            return left * 2

    check(program, [(td(), td(z=torch.zeros(3)))])


def test_alias_of_operand_and_output_in_place_is_right_on_inductor():
    # W1
    def program(td):
        td += td.flip(0)

    check(program, [td(4), td(4)], backend="inductor")
