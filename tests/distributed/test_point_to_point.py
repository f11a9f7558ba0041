"""Sending and receiving between two ranks."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from world import failure_of

from tdcompile import TensorDict


def make(value, *, swapped=False):
    """Leaves that tell themselves apart; `swapped` inserts the keys in another order."""
    entries = {
        "b": torch.full((3,), value),
        "n": {"x": torch.full((3, 2), value + 1), "a": torch.full((3,), value + 2).double()},
        "a": torch.full((3, 1), int(value)),
    }
    if swapped:
        entries["n"] = dict(reversed(entries["n"].items()))
        entries = dict(reversed(entries.items()))
    return TensorDict(entries, [3])


def values(td):
    return {str(key): leaf.flatten()[0].item() for key, leaf in td.items(True, True, sort=True)}


def ring(rank, size, mode, kwargs):
    """Each rank sends to the next one and receives from the one before."""
    ours, theirs = make(float(rank)), make(-1.0, swapped=True)
    pointers = [leaf.data_ptr() for leaf in theirs.values(True, True)]
    before = (rank - 1) % size
    works = ours.isend((rank + 1) % size, return_early=True, **kwargs)
    if mode == "early":
        for work in theirs.irecv(before, return_premature=True, **kwargs):
            work.wait()
            assert work.is_completed()
    else:
        answer = getattr(theirs, mode)(before, **kwargs)
        assert (answer is None) == (mode == "irecv" or bool(kwargs.get("consolidated")))
    for work in works:
        work.wait()
    assert pointers == [leaf.data_ptr() for leaf in theirs.values(True, True)]
    assert values(theirs) == values(make(float(before)))


@pytest.mark.parametrize("mode", ["recv", "irecv", "early"])
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"init_tag": 7},
        {"pseudo_rand": True, "init_tag": 3},
        {"consolidated": True},
        {"check": False},
        {"check": False, "consolidated": True},
    ],
    ids=str,
)
def test_values_arrive_by_key_whatever_the_order(world, mode, kwargs):
    world.run(ring, mode, kwargs)


def blocking(rank, size, kwargs):
    if rank == 0:
        assert make(5.0).send(1, **kwargs) is None
        return make(6.0).isend(1, **kwargs)
    received = make(0.0)
    tag = received.recv(0, **kwargs)
    assert values(received) == values(make(5.0))
    received.recv(0, **kwargs)
    assert values(received) == values(make(6.0))
    return tag


@pytest.mark.parametrize(
    ("kwargs", "tag"), [({}, 3), ({"init_tag": 10}, 13), ({"consolidated": True}, None)], ids=str
)
def test_send_returns_when_received_and_both_know_the_last_tag(pair, kwargs, tag):
    assert pair.run(blocking, kwargs) == [tag, tag]


def other_groups(rank, size):
    """Through a group that torch knows, by global rank and by rank in the group."""
    group = dist.new_group([size - 2, size - 1])
    if rank == size - 2:
        make(1.0).send(size - 1, group=group)
        make(2.0).send(group=group, group_dst=1)
    elif rank == size - 1:
        for value, kwargs in ((1.0, {"src": size - 2}), (2.0, {"group_src": 0})):
            received = make(0.0)
            received.recv(group=group, **kwargs)
            assert values(received) == values(make(value))


def test_groups_are_addressed_by_global_rank_or_by_their_own(world):
    world.run(other_groups)


def raw_group(rank, size, folder):
    """Through a group that torch does not know."""
    store = dist.PrefixStore("raw", dist.FileStore(f"{folder}/raw", size))
    group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=20))
    if rank == 0:
        make(1.0).send(group=group, group_dst=1)
        make(2.0).send(group=group, group_dst=1, consolidated=True)
    else:
        for value in (1.0, 2.0):
            received = make(0.0)
            received.recv(group=group, group_src=0, consolidated=value == 2.0)
            assert values(received) == values(make(value))


def test_unregistered_group_is_served(pair, tmp_path):
    pair.run(raw_group, str(tmp_path))


@pytest.mark.parametrize("name", ["send", "isend", "recv", "irecv"])
def test_arguments_that_name_no_peer_are_refused(name):
    method = getattr(TensorDict({"a": torch.ones(1)}), name)
    argument = "dst" if name.endswith("send") else "src"
    for match, kwargs in (
        ("Exactly one", {}),
        ("requires `group`", {f"group_{argument}": 0}),
        ("mutually exclusive", {argument: 0, f"group_{argument}": 0, "group": object()}),
    ):
        with pytest.raises(ValueError, match=match):
            method(**kwargs)


MISMATCHES = {
    "missing": (lambda td: td.exclude("b"), 'td["b"] is here, not on rank 0'),
    "more": (lambda td: td.set("z", torch.ones(3)), 'td["z"] is on rank 0, not here'),
    "nested": (
        lambda td: td.exclude(("n", "x")).set(("n", "y"), torch.ones(3, 2)),
        'td["n"]["y"] is on rank 0, not here',
    ),
    "shape": (
        lambda td: td.set("b", torch.ones(3, 4)),
        'td["b"] is float32[3] here, float32[3, 4] on rank 0',
    ),
    "transposed": (
        lambda td: td.set(("n", "x"), torch.ones(3, 1, 2, 1)[..., 0].reshape(3, 2, 1).mT).set(
            "t", torch.ones(3, 2, 3)
        ),
        'td["t"] is on rank 0, not here',
    ),
    "dtype": (
        lambda td: td.set("b", torch.ones(3, dtype=torch.int32)),
        'td["b"] is float32[3] here, int32[3] on rank 0',
    ),
    "non_tensor": (lambda td: td.set("s", "text"), 'td["s"] is on rank 0, not here'),
}


def mismatched(rank, size, name, kwargs):
    if rank == 0:
        td = MISMATCHES[name][0](make(4.0))
        td.send(1, **kwargs)
        make(5.0).send(1, **kwargs)
        return None
    received = make(1.0)
    text = failure_of(lambda: received.recv(0, **kwargs))
    assert values(received) == values(make(1.0))
    # What was announced has been taken in: the next tensordict arrives whole.
    received.recv(0, **kwargs)
    assert values(received) == values(make(5.0))
    return text


@pytest.mark.parametrize("kwargs", [{}, {"consolidated": True}, {"pseudo_rand": True}], ids=str)
@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatch_names_the_key_and_writes_nothing(pair, name, kwargs):
    text = pair.run(mismatched, name, kwargs)[1]
    assert text.startswith("DistributedError: rank 1: recv from rank 0: ")
    assert MISMATCHES[name][1] in text


def modes(rank, size):
    if rank == 0:
        make(4.0).send(1, consolidated=True)
        return None
    return failure_of(lambda: make(1.0).recv(0))


def test_one_message_and_many_are_told_apart(pair):
    assert "expected consolidated=False as here, found True" in pair.run(modes)[1]


def early_mismatch(rank, size):
    if rank == 0:
        make(4.0).rename_key_("b", "c").send(1)
        return None
    first, *rest = make(1.0).irecv(0, return_premature=True)
    text = failure_of(first.wait)
    for work in rest:
        work.wait()
    return text


def test_early_receive_compares_when_waited_for(pair):
    assert 'td["b"] is here, not on rank 0' in pair.run(early_mismatch)[1]


def many(rank, size):
    td = TensorDict({f"key_{place}": torch.full((2,), rank) for place in range(300)}, [2])
    if rank == 0:
        td.send(1)
    else:
        td.recv(0)
        assert (td == 0).all()


def test_structure_longer_than_a_header_is_compared_by_digest(pair):
    pair.run(many)


def odd_leaves(rank, size):
    """Leaves that are not contiguous, have no elements, need gradients, or are of odd dtypes."""
    base = torch.arange(12.0).reshape(3, 4) * (1 - rank)
    td = TensorDict(
        {
            "column": base[:, 1],
            "transposed": torch.full((2, 3), 1.0 - rank).t(),
            "none": torch.ones(3, 0),
            "grad": torch.full((3,), 1.0 - rank, requires_grad=True),
            "bool": torch.full((3,), rank == 0),
            "half": torch.full((3,), 1.0 - rank, dtype=torch.bfloat16),
            "complex": torch.full((3,), 1.0 - rank, dtype=torch.complex64),
        },
        [3],
    )
    for kwargs in ({}, {"consolidated": True}):
        if rank == 0:
            td.send(1, **kwargs)
        else:
            td.recv(0, **kwargs)
            assert td["column"].tolist() == [1.0, 5.0, 9.0]
            assert base[:, 0].tolist() == [0.0, 0.0, 0.0]
            for key in ("transposed", "grad", "bool", "half", "complex"):
                assert (td[key] == 1).all(), key
            assert td["grad"].requires_grad
            with torch.no_grad():
                td.zero_()


def test_leaves_of_every_kind_are_received_in_place(pair):
    pair.run(odd_leaves)


def test_leaf_that_cannot_be_written_is_named():
    td = TensorDict({"n": {"x": torch.ones(1).expand(3)}}, [3])
    with pytest.raises(RuntimeError, match=r'expanded tensor at td\["n"\]\["x"\]'):
        td.recv(0)


def test_leaf_that_cannot_be_sent_is_named():
    td = TensorDict({"s": lambda: None}, [])
    with pytest.raises(RuntimeError, match=r'can be pickled, found function at td\["s"\]'):
        td.send(0)
    td = TensorDict({"x": torch.eye(3).to_sparse()}, [3])
    with pytest.raises(RuntimeError, match=r'layout torch.sparse_coo at td\["x"\]'):
        td.send(0)


def non_tensors(rank, size, kwargs):
    td = TensorDict({"x": torch.ones(3), "n": {"s": f"from {rank}"}}, [3])
    td.set_non_tensor("o", (rank, "any"))
    td.lock_()
    if rank == 0:
        td.send(1, **kwargs)
        return None
    for work in td.irecv(0, return_premature=True, **kwargs):
        work.wait()
    assert td.is_locked
    return td["n", "s"], td["o"]


@pytest.mark.parametrize("kwargs", [{}, {"consolidated": True}, {"check": False}], ids=str)
def test_non_tensor_values_are_sent_too(pair, kwargs):
    assert pair.run(non_tensors, kwargs)[1] == ("from 0", (0, "any"))


def without_blocking(rank, size):
    async def main():
        if rank == 0:
            await make(4.0).asend(1)
            return None
        td = make(0.0)
        assert await td.arecv(0) is td
        return values(td)

    return asyncio.run(main())


def test_event_loop_sends_and_receives(pair):
    assert pair.run(without_blocking)[1] == values(make(4.0))


class Pipe:
    """What the reference calls a pipe, with a list in between."""

    def __init__(self):
        self.sent = []

    def send(self, td):
        self.sent.append(td)

    def recv(self, td):
        return td.update_(self.sent.pop())

    async def asend(self, td):
        self.send(td)

    async def arecv(self, td, *, device=None):
        return self.recv(td)


def test_pipe_is_asked_to_send_and_receive():
    pipe = Pipe()
    make(4.0).send(pipe)
    assert values(make(0.0).recv(pipe)) == values(make(4.0))
    asyncio.run(make(5.0).asend(pipe))
    assert values(asyncio.run(make(0.0).arecv(pipe))) == values(make(5.0))


def unreachable(rank, size):
    group = dist.new_group([0, 1])
    assert "found 2" in failure_of(lambda: make(1.0).send(group=group, group_dst=size))
    return failure_of(lambda: make(1.0).send(size + 3))


def test_rank_that_is_not_there_is_named(pair):
    for rank, text in enumerate(pair.run(unreachable)):
        assert text == (
            f"DistributedError: rank {rank}: send: expected dst to be one of the ranks [0, 1], "
            "found 5"
        )
