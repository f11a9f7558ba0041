"""Class statements of tensorclasses: what they make, what they refuse; and what differs."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import weakref
from typing import Any, Generic, TypeVar

import pytest
import torch
from torch.utils import _pytree as pytree

from tdcompile.errors import LockedError, TensorDictShapeError, UnknownFieldError
from tdcompile.tensordict import (
    TensorClass,
    TensorDict,
    TensorDictBase,
    from_dataclass,
    is_tensorclass,
    kinds,
    lazy_stack,
    tensorclass,
)

T = TypeVar("T")


class Point(TensorClass):
    """At module level, so that pickle finds it."""

    x: torch.Tensor
    label: str = "none"
    below: Point = None


@tensorclass
class Decorated:
    x: torch.Tensor

    def own_class(self):
        return __class__  # the compiler's cell

    def clone(self, recurse=True):
        return super().clone(recurse)

    @classmethod
    def zeros(cls, length):
        return cls(torch.zeros(length), batch_size=[length])

    @staticmethod
    def three():
        return 3


class Outer:
    """Holds a class, which pickle finds by its qualified name."""

    @tensorclass
    class Inner:
        x: torch.Tensor


@dataclasses.dataclass
class Record:
    a: int
    b: torch.Tensor
    c: str = "c"


def point(**kwargs):
    return Point(torch.arange(6.0).reshape(3, 2), batch_size=[3], **kwargs)


# -- what an instance is -------------------------------------------------------------------------


def test_instance_has_the_state_of_a_tensordict_and_no_dictionary():
    p = point()
    assert not hasattr(p, "__dict__")
    assert not isinstance(p, TensorDictBase)
    assert isinstance(p, TensorClass)
    assert is_tensorclass(p)
    assert is_tensorclass(Point)
    assert not is_tensorclass(TensorDict())
    assert not is_tensorclass(3)
    assert weakref.ref(p)() is p


def test_field_without_a_value_has_no_entry():
    p = point()
    assert p.below is None
    assert list(p.keys()) == ["x", "label"]
    p.x = None
    assert list(p.keys()) == ["label"]


def test_class_is_announced_and_registered_as_a_pytree():
    assert {Point, Decorated} <= set(kinds.announced())
    assert TensorClass["nocast"] not in kinds.announced()
    doubled = pytree.tree_map(lambda x: x * 2, point(label="a"))
    assert type(doubled) is Point
    assert doubled.label == "a"
    assert torch.equal(doubled.x, point().x * 2)


def test_vmap_maps_over_the_batch():
    out = torch.vmap(lambda p: p + p.x.sum())(point(label="a"))
    assert type(out) is Point
    assert out.batch_size == torch.Size([3])
    assert out.x[0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "make",
    [point, lambda: Decorated.zeros(3), lambda: Outer.Inner(torch.zeros(3))],
    ids=["base", "decorator", "in a class"],
)
def test_pickle_keeps_class_values_and_lock(make):
    value = make().lock_()
    loaded = pickle.loads(pickle.dumps(value))
    assert type(loaded) is type(value)
    assert loaded.is_locked
    assert torch.equal(loaded.x, value.x)


def test_replace_of_a_field_leaves_the_original():
    p = point()
    changed = p.__replace__(label="a")
    assert (changed.label, p.label) == ("a", "none")
    assert changed.x is p.x
    assert copy.copy(p).x is p.x


# -- the decorator -------------------------------------------------------------------------------


def test_decorated_methods_mean_the_new_class():
    value = Decorated.zeros(3)
    assert value.own_class() is Decorated
    assert type(value.clone()) is Decorated
    assert Decorated.three() == 3
    assert issubclass(Decorated, TensorClass)


def test_decorator_on_a_subclass_sets_its_options():
    @tensorclass(nocast=True)
    class Child(Point):
        n: Any = None

    assert Child(torch.ones(3), n=4).n == 4
    assert isinstance(Point(4).x, torch.Tensor)
    assert [field.name for field in dataclasses.fields(Child)] == ["x", "label", "below", "n"]


def test_tensorclass_of_a_dataclass_and_of_its_instance():
    made = from_dataclass(Record, nocast=True)
    assert made(a=1, b=torch.ones(3)).a == 1
    value = from_dataclass(Record(1, torch.ones(3)), batch_size=[])
    assert value.c == "c"
    assert torch.equal(value.a, torch.tensor(1))
    assert from_dataclass(value) is value
    assert type(from_dataclass(Record(1, torch.ones(3)), dest_cls=made)) is made
    with pytest.raises(TypeError, match="expected a dataclass"):
        from_dataclass(3)


# -- class statements ----------------------------------------------------------------------------


def test_options_of_dataclass_fields_are_kept():
    class Data(TensorClass):
        x: torch.Tensor
        _: dataclasses.KW_ONLY
        y: torch.Tensor
        n: torch.Tensor = dataclasses.field(init=False, default=None)

    assert Data(torch.ones(3), y=torch.zeros(3)).y.sum() == 0
    with pytest.raises(TypeError, match="positional"):
        Data(torch.ones(3), torch.zeros(3))
    with pytest.raises(TypeError, match="unexpected keyword argument 'n'"):
        Data(torch.ones(3), y=torch.zeros(3), n=torch.ones(3))


def test_keyword_only_class():
    @tensorclass(kw_only=True)
    class Data:
        x: torch.Tensor = None
        y: torch.Tensor

    assert Data(y=torch.ones(3)).x is None
    with pytest.raises(TypeError, match="positional"):
        Data(torch.ones(3))


def test_generic_and_mixin_bases_work():
    class Mixin:
        def twice(self):
            return self.x * 2

    class Data(Mixin, TensorClass, Generic[T]):
        x: torch.Tensor

    assert Data[int](torch.ones(3)).twice().sum() == 6


def test_fields_of_a_plain_dataclass_base_are_fields():
    @dataclasses.dataclass
    class Base:
        x: torch.Tensor

    class Data(Base, TensorClass):
        y: torch.Tensor

    data = Data(torch.ones(3), torch.zeros(3), batch_size=[3])
    assert list((data + 1).keys()) == ["x", "y"]


def test_field_redeclared_in_a_subclass_keeps_its_place():
    class Data(Point):
        x: Any
        label: int = 3

    assert [field.name for field in dataclasses.fields(Data)] == ["x", "label", "below"]
    assert Data(torch.ones(3)).label.item() == 3


def test_constructor_of_a_subclass_may_call_that_of_its_base():
    class Data(Point):
        def __init__(self, length):
            super().__init__(torch.zeros(length), batch_size=[length])
            self.label = "own"

    class Child(Data):
        pass

    for cls in (Data, Child):
        value = cls(3)
        assert (value.label, value.batch_size) == ("own", torch.Size([3]))
        assert type(value[0]) is cls


def test_constructor_may_call_that_of_all_tensorclasses():
    class Data(TensorClass):
        x: torch.Tensor
        label: str = "none"

        def __init__(self, length):
            super().__init__(torch.zeros(length), batch_size=[length])

    class Child(Data):
        def __init__(self):
            super().__init__(2)
            self.label = "child"

    assert (Data(3).batch_size, Data(3).label) == (torch.Size([3]), "none")
    assert (Child().x.shape, Child()[0].label) == (torch.Size([2]), "child")


def test_own_setattr_sees_fields_only():
    seen = []

    class Data(TensorClass):
        x: torch.Tensor

        def __setattr__(self, name, value):
            seen.append(name)
            super().__setattr__(name, value)

    data = Data(torch.ones(3), batch_size=[3])
    data.x = (data + 1).x
    assert seen == ["x", "x"]


def test_post_init_runs_for_results_unless_the_option_says_no():
    class Counted(TensorClass):
        x: torch.Tensor

        def __post_init__(self):
            self.x = self.x + 1

    class Once(Counted, skip_post_init_on_rebuild=True):
        pass

    assert (Counted(torch.zeros(3)) * 1).x.tolist() == [2.0] * 3
    assert (Once(torch.zeros(3)) * 1).x.tolist() == [1.0] * 3
    assert Once.from_dict({"x": torch.zeros(3)}).x.tolist() == [1.0] * 3
    assert Counted(torch.zeros(3)).empty().x is None


CASTS = {
    "shorthand": lambda p: p.double(),
    "to": lambda p: p.to(torch.float64),
    "to device": lambda p: p.to("cpu", torch.float64),
    "type": lambda p: p.type(torch.float64),
}


@pytest.mark.parametrize("cast", CASTS)
def test_cast_filter_of_a_class_holds_unless_the_call_has_one(cast):
    @tensorclass(cast_filter=lambda key, value: key == ("x",))
    class Data:
        x: torch.Tensor
        y: torch.Tensor

    class Child(Data):
        pass

    for kind in (Data, Child):
        data = kind(torch.ones(3), torch.ones(3))
        result = CASTS[cast](data)
        assert (result.x.dtype, result.y.dtype) == (torch.float64, torch.float32)
        assert data.double(cast_filter=None).y.dtype == torch.float64
        assert data.to(torch.float64, cast_filter=None).y.dtype == torch.float64
        assert TensorDict(data=data).double()["data"].y.dtype == torch.float64


@pytest.mark.parametrize("name", ["clone", "batch_size", "keys", "fields"])
def test_field_with_the_name_of_a_method_needs_shadow(name):
    with pytest.raises(AttributeError, match=f"Attribute name {name} can't be used"):
        type("Data", (TensorClass,), {"__annotations__": {name: Any}})
    data = type("Data", (TensorClass["shadow"],), {"__annotations__": {name: Any}})
    assert getattr(data("text"), name) == "text"
    assert name in repr(data("text"))


@pytest.mark.parametrize(
    "options",
    [
        {"autocast": True, "nocast": True},
        {"tensor_only": True, "nocast": True},
        {"nope": True},
    ],
    ids=str,
)
def test_options_that_clash_or_are_unknown_raise(options):
    with pytest.raises(TypeError):
        tensorclass(**options)(type("Data", (), {"__annotations__": {"x": torch.Tensor}}))
    with pytest.raises(TypeError):
        TensorClass[tuple(options)]


def test_tensor_only_refuses_other_annotations():
    with pytest.raises(TypeError, match="tensor_only requires"):

        class Data(TensorClass["tensor_only"]):
            x: torch.Tensor
            s: torch.Tensor | str


def test_base_class_itself_makes_no_instances():
    with pytest.raises(NotImplementedError, match="declare fields"):
        TensorClass()


# -- refused writes ------------------------------------------------------------------------------

REFUSED = {
    "attribute": (lambda p: setattr(p, "nope", 1), AttributeError, "nope"),
    "set": (lambda p: p.set("nope", torch.ones(3)), UnknownFieldError, "the attribute 'nope'"),
    "set below": (lambda p: p.set(("below", "nope"), torch.ones(3)), UnknownFieldError, "'nope'"),
    "non-tensor": (lambda p: p.set_non_tensor("nope", 1), UnknownFieldError, "'nope'"),
    "update": (
        lambda p: p.update({"x": torch.ones(3), "nope": torch.ones(3)}),
        UnknownFieldError,
        "'nope'",
    ),
    "update below": (
        lambda p: p.update({"label": "b", "below": {"nope": torch.ones(3)}}),
        UnknownFieldError,
        "'nope'",
    ),
    "rename": (lambda p: p.rename_key_("x", "nope"), UnknownFieldError, "'nope'"),
    "flatten": (lambda p: p.flatten_keys(".", inplace=True), UnknownFieldError, "'below.x'"),
    "batch size": (lambda p: setattr(p, "x", torch.ones(2)), TensorDictShapeError, "must be 3"),
    "index": (lambda p: p.__setitem__("x", torch.ones(3)), ValueError, "found the key 'x'"),
    "rows": (lambda p: p.__setitem__(0, Decorated(1)), ValueError, "compatible class"),
    "delete": (lambda p: delattr(p, "nope"), AttributeError, "nope"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_write_changes_nothing(case):
    write, kind, message = REFUSED[case]
    value = point(label="a", below=Point(torch.ones(3)))
    before = value.to_dict()
    with pytest.raises(kind, match=message):
        write(value)
    after = value.to_dict()
    assert list(after) == list(before)
    assert after["x"] is before["x"]
    assert after["label"] == "a"
    assert list(after["below"]) == list(before["below"])


def test_locked_instance_refuses_attributes():
    p = point().lock_()
    for write in (lambda: setattr(p, "x", None), lambda: delattr(p, "x")):
        with pytest.raises(LockedError):
            write()
    p.x.zero_()
    assert p.x.sum() == 0


def test_frozen_copy_is_unlocked_but_refuses_attributes():
    class Data(TensorClass["frozen"]):
        x: torch.Tensor

    data = Data(torch.ones(3)).clone()
    assert not data.is_locked
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        data.x = 3
    assert data.set("x", torch.zeros(3)).x.sum() == 0


def test_stack_of_two_tensorclasses_raises():
    with pytest.raises(TypeError, match="Point and Decorated"):
        torch.stack([point(), Decorated.zeros(3)])


# -- lazy stacks ---------------------------------------------------------------------------------


def test_lazy_stack_of_tensorclasses_reads_as_one():
    class Data(Point):
        @property
        def total(self):
            return self.x.sum()

        def twice(self):
            return self.x * 2

    first, second = Data(torch.ones(3), "a"), Data(torch.zeros(3), "a")
    stack = lazy_stack([first, second])
    assert stack[1] is second
    assert torch.equal(stack.x, torch.stack([first.x, second.x]))
    assert stack.below is None
    assert torch.equal(stack.twice(), stack.x * 2)
    assert stack.total == 3
    assert torch.equal((stack + 1).x, stack.x + 1)
    assert type(stack.contiguous()) is Data
    assert type(stack.to_tensordict()) is TensorDict
    assert list(Data.from_tensordict(stack).keys()) == ["x", "label"]
    with pytest.raises(AttributeError, match="nope"):
        _ = stack.nope
    with pytest.raises(AttributeError, match="twice"):
        _ = lazy_stack([first, point()[0]]).twice


# -- conversions ---------------------------------------------------------------------------------


def test_nested_dictionary_becomes_what_the_annotation_says():
    value = Point.from_dict({"x": torch.ones(3), "below": {"x": torch.ones(3)}}, batch_size=[3])
    assert type(value.below) is Point
    assert type(value.to_tensordict()["below"]) is TensorDict
    again = Point.from_dict(value.to_dict(), batch_size=[3])
    assert list(again.below.keys()) == ["x"]


def test_from_tensordict_takes_the_tensors_but_not_the_entries():
    td = TensorDict({"x": torch.ones(3)}, batch_size=[3])
    value = Point.from_tensordict(td)
    value.x = torch.zeros(3)
    assert td["x"].sum() == 3
    with pytest.raises(TypeError, match="use from_dict"):
        Point.from_tensordict({"x": torch.ones(3)})
