"""Tensordicts between processes: queues and pipes, and as the data set of a ``DataLoader``."""

from __future__ import annotations

import map_functions as functions
import pytest
import torch
from oracle import describe, example, ours
from torch import multiprocessing as torch_multiprocessing
from torch.utils.data import DataLoader, default_collate

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class Item(ours.TensorClass):
    """A tensorclass to be sent."""

    x: torch.Tensor
    s: str


def kinds():
    rows = [ours.TensorDict({"x": torch.full((2,), float(n))}, [2]) for n in range(2)]
    rows[1]["more"] = torch.ones(2)
    return {
        "dense": example(ours, names=["t"], lock=True),
        "tensorclass": Item(x=torch.ones(3), s="text", batch_size=[3]),
        "lazy": ours.LazyStackedTensorDict(*rows),
    }


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_tensordict_goes_through_queue_and_pipe(method, kind, echo):
    td = kinds()[kind]
    queues, pipe = echo(method)
    queues[0].put(td)
    pipe.send(td)
    for answer in (queues[1].get(timeout=60), pipe.recv()):
        assert type(answer) is type(td)
        assert answer.is_locked == td.is_locked
        assert answer.names == td.names
        assert set(answer.keys(True)) == set(td.keys(True))
        for key in td.keys(True, True):
            assert torch.equal(answer.get(key), td.get(key))


@pytest.fixture(scope="module")
def echo():
    """Processes that send back what they get, one for each start method."""
    made = {}

    def get(method):
        if method not in made:
            context = torch_multiprocessing.get_context(method)
            queues = context.Queue(), context.Queue()
            ours_end, theirs = context.Pipe()
            process = context.Process(
                target=functions.send_back, args=(*queues, theirs), daemon=True
            )
            process.start()
            theirs.close()
            made[method] = queues, ours_end, process
        return made[method][:2]

    yield get
    for queues, pipe, process in made.values():
        queues[0].put(None)
        pipe.close()
        process.join(20)
        process.kill()
        for queue in queues:
            queue.close()
            queue.join_thread()


def test_memory_is_shared_with_the_other_process():
    td = example(ours)
    context = torch_multiprocessing.get_context("fork")
    ours_end, theirs = context.Pipe()
    process = context.Process(target=functions.add_in_place, args=(theirs,))
    process.start()
    ours_end.send(td)
    assert ours_end.recv() == "done"
    process.join(20)
    assert (td["n", "x"] == torch.arange(3.0) + 1).all()
    assert process.exitcode == 0


# ---- DataLoader --------------------------------------------------------------------------------


def data(size=10):
    n = ours.TensorDict({"x": torch.arange(size * 2.0).reshape(size, 2)}, [size])
    return ours.TensorDict({"a": torch.arange(size), "n": n, "s": "text"}, [size])


def identity(batch):
    return batch


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("collate_fn", [identity, ours.collate], ids=["identity", "collate"])
def test_loader_reads_a_tensordict_by_lists_of_positions(num_workers, collate_fn):
    td = data()
    extra = {"multiprocessing_context": "fork"} if num_workers else {}
    loader = DataLoader(td, batch_size=4, collate_fn=collate_fn, num_workers=num_workers, **extra)
    batches = list(loader)
    assert [batch.batch_size for batch in batches] == [(4,), (4,), (2,)]
    assert all(isinstance(batch, ours.TensorDict) for batch in batches)
    assert describe(torch.cat(batches)) == describe(td)


def test_loader_shuffles_and_samples():
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(data(), 3, shuffle=True, generator=generator, collate_fn=identity)
    order = torch.cat(list(loader))
    assert sorted(order["a"].tolist()) == list(range(10))
    assert order["a"].tolist() != list(range(10))
    assert torch.equal(order["n", "x"][:, 0], order["a"] * 2.0)
    loader = DataLoader(data(), batch_sampler=[[1, 3], [2]], collate_fn=identity)
    assert [batch["a"].tolist() for batch in loader] == [[1, 3], [2]]


def test_loader_without_batches_reads_rows():
    rows = list(DataLoader(data(3), batch_size=None))
    assert [row.batch_size for row in rows] == [()] * 3
    assert [row["a"].item() for row in rows] == [0, 1, 2]


def test_loader_reads_other_kinds():
    item = Item(x=torch.arange(5.0), s="text", batch_size=[5])
    batches = list(DataLoader(item, batch_size=2, collate_fn=identity))
    assert all(isinstance(batch, Item) and batch.s == "text" for batch in batches)
    assert torch.cat([batch.x for batch in batches]).tolist() == list(range(5))
    stack = kinds()["lazy"]
    (batch,) = DataLoader(stack, batch_size=2, collate_fn=identity)
    assert isinstance(batch, ours.LazyStackedTensorDict)
    assert "more" in batch[1]


def test_pin_memory_of_the_loader_reaches_every_leaf(monkeypatch):
    """Without a device to pin for, the loader's own function is asked and torch's replaced."""
    from torch.utils.data._utils.pin_memory import pin_memory

    pinned = []
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda leaf, *args: pinned.append(leaf) or leaf.clone()
    )
    td = data()
    result = pin_memory([td])[0]
    assert isinstance(result, ours.TensorDict)
    assert len(pinned) == 2
    assert describe(result) == describe(td)


def test_default_collate_of_torch_is_left_as_it_is():
    with pytest.raises(TypeError, match="must contain tensors"):
        default_collate([data(), data()])
