"""Other kinds than the dense tensordict: lazy stacks, tensorclasses, typed ones, parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from world import failure_of

from tdcompile import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    TensorDictParams,
    TypedTensorDict,
    UnbatchedTensor,
)


class Record(TensorClass):
    """A tensorclass with a nested tensordict and a text."""

    x: Tensor
    n: TensorDict
    s: str


class Typed(TypedTensorDict):
    """A typed tensordict."""

    x: Tensor


def element(value, wide=False):
    td = TensorDict({"x": torch.full((2,), value), "n": {"y": torch.full((2, 3), value)}}, [2])
    if wide:
        td["x"] = torch.full((2, 5), value)
        td["more"] = torch.full((2,), value)
    return td


def lazy(value, text=""):
    return LazyStackedTensorDict(element(value), element(value, wide=True), stack_dim=1)


def nested_lazy(value, text=""):
    return TensorDict({"l": lazy(value), "x": torch.full((2, 2), value)}, [2, 2])


def record(value, text=""):
    n = TensorDict({"y": torch.full((3,), value)}, [3])
    return Record(x=torch.full((3, 2), value), n=n, s=text, batch_size=[3])


def typed(value, text=""):
    return Typed(x=torch.full((3,), value), batch_size=[3])


def params(value, text=""):
    return TensorDictParams(TensorDict({"x": torch.full((3,), value), "n": {"y": torch.ones(2)}}))


def unbatched(value, text=""):
    table = UnbatchedTensor(torch.full((5,), value))
    return TensorDict({"x": torch.full((3,), value), "u": table}, [3])


def mapped(value, text=""):
    return TensorDict({"x": torch.full((3,), value), "n": {"s": text}}, [3]).memmap_()


def values(value, text=""):
    texts = NonTensorStack(text, f"{text}!", "x")
    return TensorDict({"x": torch.full((3,), value), "texts": texts, "m": MetaData(text)}, [3])


KINDS = {
    "unbatched": unbatched,
    "mapped": mapped,
    "values": values,
    "lazy": lazy,
    "nested_lazy": nested_lazy,
    "record": record,
    "typed": typed,
    "params": params,
}


def tensors(td):
    """The tensors of a tensordict, in a fixed order; those of a stack by element."""
    if isinstance(td, LazyStackedTensorDict):
        return [leaf for part in td.tensordicts for leaf in tensors(part)]
    found = []
    for key in sorted(td.keys()):
        value = td.get(key)
        if isinstance(value, Tensor):
            found.append(value)
        elif hasattr(value, "keys") and key != "s":
            found += tensors(value)
    return found


def same(left, right):
    assert type(left) is type(right)
    assert left.batch_size == right.batch_size
    assert len(tensors(left)) == len(tensors(right))
    for one, other in zip(tensors(left), tensors(right), strict=True):
        assert torch.equal(one, other)
    if isinstance(left, Record):
        assert left.s == right.s
    for key in list(right.keys()):
        value = right.get(key, as_list=True) if right._is_stack else right.get(key)
        if isinstance(value, (NonTensorStack, MetaData)):
            assert type(left.get(key)) is type(value)
            assert left.get(key).tolist() == value.tolist()
        elif key == "u":
            assert type(left.get(key)) is type(value)


def sending(rank, size, kind, kwargs):
    make = KINDS[kind]
    if rank == 0:
        make(3.0, "sent").send(1, **kwargs)
        make(4.0, "again").isend(1, **kwargs)
        return
    td = make(0.0, "here")
    pointers = [leaf.data_ptr() for leaf in tensors(td)]
    td.recv(0, **kwargs)
    same(td, make(3.0, "sent"))
    for work in td.irecv(0, return_premature=True, **kwargs):
        work.wait()
    same(td, make(4.0, "again"))
    assert pointers == [leaf.data_ptr() for leaf in tensors(td)]


@pytest.mark.parametrize("kwargs", [{}, {"consolidated": True}, {"check": False}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_received_in_place(pair, kind, kwargs):
    pair.run(sending, kind, kwargs)


def reducing(rank, size, kind, kwargs):
    td, other = KINDS[kind](rank + 1.0), KINDS[kind](rank + 1.0)
    expected = [leaf.detach() * 0 for leaf in tensors(td)]
    for r in range(size):
        for total, leaf in zip(expected, tensors(KINDS[kind](r + 1.0)), strict=True):
            total += leaf.detach()
    td.all_reduce(**kwargs)
    other.reduce(0, **kwargs)
    for results in (td, other) if rank == 0 else (td,):
        for total, leaf in zip(expected, tensors(results), strict=True):
            assert torch.equal(total, leaf)


@pytest.mark.parametrize("kwargs", [{}, {"bucket_bytes": 1000}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_reduced_in_place(world, kind, kwargs):
    world.run(reducing, kind, kwargs)


def travelling(rank, size, kind):
    make = KINDS[kind]
    # Operations on parameters are those of the tensordict that is held.
    plain = (lambda td: td._param_td) if kind == "params" else (lambda td: td)
    same(make(float(rank), f"{rank}").broadcast(1), plain(make(1.0, "1")))
    for r, td in enumerate(make(float(rank), f"{rank}").all_gather()):
        same(td, plain(make(float(r), f"{r}")))
    tds = [make(float(r), f"{r}") for r in range(size)] if rank == 0 else None
    same(TensorDict().scatter(0, tds), make(float(rank), f"{rank}"))
    if rank == 0:
        make(7.0, "seven").init_remote(1)
    elif rank == 1:
        same(TensorDict.from_remote_init(0), plain(make(7.0, "seven")))


@pytest.mark.parametrize("kind", KINDS)
def test_kind_arrives_as_what_it_was(world, kind):
    world.run(travelling, kind)


def lazy_mismatch(rank, size):
    td = lazy(1.0)
    if rank == 1:
        td.tensordicts[1].del_("more")
    return failure_of(td.all_reduce)


def test_element_that_differs_is_named(pair):
    first, second = pair.run(lazy_mismatch)
    assert 'td[1]["more"] is here, not on rank 1' in first
    assert 'td[1]["more"] is on rank 0, not here' in second


def stacking(rank, size):
    if rank:
        element(float(rank), wide=rank % 2 == 1).gather_and_stack(0)
        return
    rows = [element(-1.0, wide=r % 2 == 1) for r in range(1, size)]
    stack = LazyStackedTensorDict(*rows)
    stack.gather_and_stack(0)
    for r, row in enumerate(rows, start=1):
        same(row, element(float(r), wide=r % 2 == 1))


def test_lazy_stack_gathers_tensordicts_of_other_structures(world):
    world.run(stacking)
