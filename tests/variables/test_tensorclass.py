"""Tensorclasses and typed tensordicts in a trace: the same programs eager and compiled."""

from __future__ import annotations

import dataclasses
from typing import Any, NotRequired

import pytest
import torch
from helpers import guards_of, run
from torch.utils import _pytree as pytree

from tdcompile import TensorClass, TensorDict, TensorDictBase, TypedTensorDict, tensorclass
from tdcompile.tensordict import TensorCollection, is_tensorclass


class Point(TensorClass):
    x: torch.Tensor
    label: str = "none"
    y: torch.Tensor = None

    @property
    def total(self):
        return self.x.sum()

    def twice(self):
        return self.x * 2


@tensorclass
class Pair:
    a: torch.Tensor
    b: torch.Tensor = None


class Node(TensorClass["nocast"]):
    x: torch.Tensor
    point: Point = None
    n: Any = None


class Cast(TensorClass["autocast"]):
    x: torch.Tensor
    i: int = 3
    point: Point = None


class Frozen(TensorClass["frozen"]):
    x: torch.Tensor


class Only(TensorClass["tensor_only"]):
    x: torch.Tensor


class Absolute(TensorClass):
    x: torch.Tensor

    def __post_init__(self):
        self.x = self.x.abs()


class Typed(TypedTensorDict):
    a: torch.Tensor
    b: NotRequired[torch.Tensor]


def point(label="a"):
    return Point(torch.arange(6.0).reshape(3, 2), label, torch.ones(3), batch_size=[3])


def node():
    return Node(torch.ones(3), point(), 7, batch_size=[3])


def typed():
    return Typed(a=torch.arange(3.0), batch_size=[3])


def plain(value: Any) -> Any:
    """A result as data: classes, keys in order, values, metadata."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.tolist())
    if isinstance(value, TensorCollection):
        entries = [(key, plain(item)) for key, item in value._entries.items()]
        meta = (value._batch_size, value._device, value._names, value._is_locked)
        return (type(value), entries, meta)
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return [(key, plain(item)) for key, item in value.items()]
    return getattr(value, "data", value)


def write(p, name, value):
    setattr(p, name, value)
    return p


def delete(p, name):
    delattr(p, name)
    return p


def write_row(p, index, value):
    p[index] = value
    return p


PROGRAMS = {
    "read": (lambda p: p.x + 1, point),
    "read method": (lambda p: p.twice(), point),
    "read property": (lambda p: p.total, point),
    "read non-tensor": (lambda p: (p.x, p.label), point),
    "read nothing": (lambda p: (p.point is None, p.x), lambda: Node(torch.ones(3))),
    "read below": (lambda p: p.point.x + p.x.sum(), node),
    "get": (lambda p: p.get("x") + p.get("nope", 1), point),
    "write": (lambda p: write(p, "x", p.x * 2), point),
    "write none": (lambda p: write(p, "y", None), point),
    "write below": (lambda p: write(p.point, "x", p.x), node),
    "write non-tensor": (lambda p: write(p, "label", "b"), point),
    "set": (lambda p: p.set("x", p.x + 1), point),
    "update": (lambda p: p.update({"x": p.x + 1}), point),
    "delete": (lambda p: delete(p, "y"), point),
    "write row": (lambda p: write_row(p, 0, p[1]), point),
    "make": (lambda p: Point(x=p.x + 1, label="b", batch_size=[3]), point),
    "make by position": (lambda p: Point(p.x + 1, batch_size=p.batch_size), point),
    "make decorated": (lambda p: Pair(p.x, p.y, batch_size=[3]), point),
    "make nested": (lambda p: Node(p.x, Point(p.x, batch_size=[3]), batch_size=[3]), point),
    "make nocast": (lambda p: Node(p.x, n=4), point),
    "make autocast": (lambda p: Cast(p.x, 4.5, p), point),
    "make from dict": (lambda p: Cast(p.x, point={"x": p.x}, batch_size=[3]), point),
    "make frozen": (lambda p: Frozen(p.x), point),
    "make tensor-only": (lambda p: Only(1.5).x + p.x, point),
    "make post-init": (lambda p: Absolute(p.x - 3), point),
    "operation post-init": (lambda p: p * -1, lambda: Absolute(torch.ones(3), batch_size=[3])),
    "arithmetic": (lambda p: p * 2 + 1, point),
    "index": (lambda p: (p[0], p[1:]), point),
    "clone": (lambda p: p.clone(), point),
    "stack": (lambda p: torch.stack([p, p]), point),
    "replace": (lambda p: p.replace(x=p.x + 1), point),
    "apply": (lambda p: p.apply(torch.exp), point),
    "to tensordict": (lambda p: p.to_tensordict(), point),
    "from tensordict": (lambda p: Point.from_tensordict(p.to_tensordict()), point),
    "to dict": (lambda p: p.to_dict(), point),
    "keys": (lambda p: (list(p.keys()), p.x), point),
    "kinds": (
        lambda p: (isinstance(p, (Point, TensorDictBase)), is_tensorclass(p), p.x),
        point,
    ),
    "in a tensordict": (lambda p: TensorDict({"p": p}, batch_size=[3])["p"].x + 1, point),
    "typed read": (lambda t: t.a + t["a"].sum(), typed),
    "typed write": (lambda t: write(t, "b", t.a + 1), typed),
    "typed make": (lambda t: Typed(a=t.a + 1, b=t.a, batch_size=[3]), typed),
    "typed arithmetic": (lambda t: t + 1, typed),
    "typed index": (lambda t: t[0].a, typed),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_compiles_whole_and_gives_what_eager_gives(name):
    program, make = PROGRAMS[name]
    expected_input, found_input = make(), make()
    expected = program(expected_input)
    report = run(program, [(found_input,), (make(),)])
    assert plain(report.results[0]) == plain(expected)
    assert plain(report.results[1]) == plain(expected)
    assert plain(found_input) == plain(expected_input)
    # A program without operations on tensors has no graph.
    assert report.compilations <= 1


@pytest.mark.parametrize("name", ["write", "set", "update"])
def test_program_returns_its_input_itself(name):
    program, make = PROGRAMS[name]
    value = make()
    assert run(program, [(value,)]).results[0] is value


def test_reading_a_field_does_not_depend_on_the_others():
    inputs = [(point(),), (point("b"),), (Point(torch.zeros(3, 2), batch_size=[3]),)]
    assert run(lambda p: p.x + 1, inputs).compilations == 1


def test_reading_a_field_has_the_guards_of_a_tensordict():
    td = TensorDict({"x": torch.ones(3)}, batch_size=[3])
    ours = guards_of(lambda p: p.x + 1, point())
    assert len(ours) == len(guards_of(lambda p: p["x"] + 1, td))


def test_wrong_field_raises_the_error_of_eager():
    with pytest.raises(AttributeError, match="nope"):
        run(lambda p: p.set("nope", p.x), [(point(),)])


def test_field_that_is_none_in_one_input_compiles_once_more():
    with_y, without_y = point(), Point(torch.zeros(3, 2), batch_size=[3])
    report = run(lambda p: p.x + (1 if p.y is None else 2), [with_y, without_y, point()])
    assert report.compilations == 2
    assert report.results[0].max() == 7
    assert report.results[1].max() == 1


def test_new_class_after_the_first_call_of_flattening_code_compiles_nothing():
    def program(td):
        return pytree.tree_map(lambda x: x * 2, td)

    def inputs():
        yield (TensorDict({"x": torch.ones(3)}, batch_size=[3]),)

        class Late(TensorClass):
            x: torch.Tensor

        assert dataclasses.is_dataclass(Late)
        yield (TensorDict({"x": torch.zeros(3)}, batch_size=[3]),)

    report = run(program, inputs())
    assert report.compilations == 1
    assert report.results[1]["x"].sum() == 0


def test_class_defined_after_install_is_traced():
    def program(value):
        return value.x + 1

    def inputs():
        class Late(TensorClass):
            x: torch.Tensor

        for fill in (0.0, 1.0):
            yield (Late(torch.full((3,), fill), batch_size=[3]),)

    report = run(program, inputs())
    assert report.compilations == 1
    assert report.results[1].sum() == 6
