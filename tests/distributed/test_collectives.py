"""Collectives over tensordicts."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from world import failure_of

from tdcompile import LazyStackedTensorDict, TensorDict

OPS = {"sum": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT, "max": dist.ReduceOp.MAX}
EXPECTED = {"sum": sum, "max": max, "product": lambda values: torch.tensor(values).prod().item()}


def make(value, *, swapped=False, extra=()):
    entries = {
        "b": torch.full((3,), value),
        "n": {"x": torch.full((3, 2), value + 1), "a": torch.full((3,), value + 2).double()},
        "a": torch.full((3, 1), int(value)),
        "s": "text",
    }
    entries.update(extra)
    if swapped:
        entries["n"] = dict(reversed(entries["n"].items()))
        entries = dict(reversed(entries.items()))
    return TensorDict(entries, [3])


def firsts(td):
    """The one value of each leaf; a leaf of several values is an error."""
    result = {}
    for key, leaf in td.items(True, True):
        assert (leaf == leaf.flatten()[0]).all(), key
        result[key] = leaf.flatten()[0].item()
    return result


def expected(size, op):
    each = [firsts(make(float(rank + 1))) for rank in range(size)]
    return {key: EXPECTED[op]([values[key] for values in each]) for key in each[0]}


# ---- all_reduce and reduce ---------------------------------------------------------------------


def reducing(rank, size, op, kwargs):
    td = make(float(rank + 1), swapped=rank % 2 == 1)
    td.lock_()
    pointers = [leaf.data_ptr() for leaf in td.values(True, True)]
    keys = list(td.keys(True))
    works = td.all_reduce(OPS[op], **kwargs)
    assert (works is None) == (not kwargs.get("async_op"))
    for work in works or ():
        work.wait()
    assert pointers == [leaf.data_ptr() for leaf in td.values(True, True)]
    assert keys == list(td.keys(True))
    assert td["s"] == "text"
    assert firsts(td) == expected(size, op)
    return len(works or ())


VARIANTS = [
    {},
    {"check": False},
    {"async_op": True},
    {"bucket_bytes": 1 << 20},
    {"bucket_bytes": 1, "async_op": True},
    {"bucket_bytes": 1 << 20, "async_op": True, "check": False},
]


@pytest.mark.parametrize("kwargs", VARIANTS, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_all_reduce_matches_keys_whatever_their_order(world, op, kwargs):
    counts = set(world.run(reducing, op, kwargs))
    # a, b, n.a, n.x; two of them have one dtype.
    full = 3 if kwargs.get("bucket_bytes") == 1 << 20 else 4
    assert counts == {full if kwargs.get("async_op") else 0}


def reducing_to(rank, size, op, kwargs):
    for dst in (0, size - 1):
        td = make(float(rank + 1), swapped=rank % 2 == 1)
        works = td.reduce(dst, OPS[op], **kwargs)
        assert (works is None) == (not kwargs.get("return_premature"))
        for work in works or ():
            work.wait()
        if rank == dst:
            assert firsts(td) == expected(size, op)


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"async_op": True},
        {"async_op": True, "return_premature": True},
        {"bucket_bytes": 64},
        {"bucket_bytes": 1 << 20, "async_op": True, "return_premature": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("op", ["sum", "max"])
def test_reduce_leaves_the_result_on_one_rank(world, op, kwargs):
    world.run(reducing_to, op, kwargs)


def sharing(rank, size, kwargs):
    """The same tensor under two keys, views that overlap, a transposed view, an empty leaf."""
    leaf = torch.full((3,), 1.0)
    row = torch.arange(4.0)
    entries = {
        "twice": leaf,
        "again": leaf if rank == 0 else leaf.clone(),
        "head": row[:3],
        "tail": row[1:] if rank == 0 else row[1:].clone(),
        "column": torch.ones(2, 3).t() if rank == 0 else torch.ones(3, 2),
        "none": torch.ones(3, 0),
        "grad": torch.ones(3, requires_grad=True),
    }
    td = TensorDict(entries, [3])
    td.all_reduce(**kwargs)
    for key in ("twice", "again", "column", "grad"):
        assert (td[key] == size).all(), (key, td[key])
    assert td["head"].tolist() == [0, size, 2 * size]
    assert td["tail"].tolist() == [size, 2 * size, 3 * size]


@pytest.mark.parametrize("kwargs", [{}, {"bucket_bytes": 1 << 10}], ids=str)
def test_leaves_that_share_memory_are_reduced_once(world, kwargs):
    world.run(sharing, kwargs)


def in_group(rank, size):
    group = dist.new_group([0, size - 1])
    td = make(float(rank + 1))
    td.all_reduce(group=group)
    together = {key: 1 + size + 2 * ("n" in key) for key in ("b", "a")}
    if rank in (0, size - 1):
        assert td["b"][0] == together["b"]
    else:
        assert td["b"][0] == rank + 1


def test_group_reduces_among_its_members_only(world):
    world.run(in_group)


def mismatched(rank, size, change, method, args, kwargs):
    td = make(float(rank + 1))
    if rank == size - 1:
        td = CHANGES[change][0](td)
    before = firsts(td)
    texts = failure_of(lambda: getattr(td, method)(*args, **kwargs))
    assert firsts(td) == before
    # The group goes on.
    td = make(float(rank + 1))
    td.all_reduce()
    assert firsts(td) == expected(size, "sum")
    return texts


CHANGES = {
    "missing": (lambda td: td.exclude("b"), 'td["b"]', "is here, not on rank", "not here"),
    "renamed": (
        lambda td: td.rename_key_("b", "c"),
        'td["b"]',
        "is here, not on rank",
        'td["c"] is here, not on rank 0',
    ),
    "shape": (
        lambda td: td.set(("n", "x"), torch.ones(3, 3)),
        'td["n"]["x"] is float32[3, 2] here, float32[3, 3] on rank',
        "",
        "float32[3, 2] on rank 0",
    ),
    "dtype": (
        lambda td: td.set("b", torch.ones(3, dtype=torch.int64)),
        'td["b"] is float32[3] here, int64[3] on rank',
        "",
        "float32[3] on rank 0",
    ),
    "expanded": (
        lambda td: td.set("b", torch.ones(1).expand(3)),
        'failed: expected leaves that can be written in place, found an expanded tensor at td["b"]',
        "",
        'found an expanded tensor at td["b"]',
    ),
}


@pytest.mark.parametrize(
    ("method", "args", "kwargs"),
    [("all_reduce", (), {}), ("all_reduce", (), {"bucket_bytes": 99}), ("reduce", (0,), {})],
    ids=["all_reduce", "bucket", "reduce"],
)
@pytest.mark.parametrize("change", CHANGES)
def test_mismatch_raises_on_every_rank_and_writes_nothing(world, change, method, args, kwargs):
    *most, last = world.run(mismatched, change, method, args, kwargs)
    for rank, text in enumerate(most):
        assert text.startswith("DistributedError: ")
        assert f"rank {rank}: {method}: " in text
        assert CHANGES[change][1] in text
        assert CHANGES[change][2] in text
        assert f"rank {len(most)}" in text
    assert last.startswith("DistributedError: ")
    assert CHANGES[change][3] in last


def size_one(rank, size):
    td = TensorDict({"x": torch.ones(3)}, [3])
    if rank == 0:
        td = td.unsqueeze(0)
    td.all_reduce()
    return td["x"].flatten().tolist()


def test_dimensions_of_size_one_do_not_count(pair):
    assert pair.run(size_one) == [[2.0, 2.0, 2.0]] * 2


def unsupported(rank, size):
    td = TensorDict({"a": torch.ones(3), "n": {"x": torch.ones(3, dtype=torch.complex64)}}, [3])
    return failure_of(lambda: td.all_reduce(dist.ReduceOp.MAX))


def test_leaf_that_the_backend_refuses_is_named(pair):
    for rank, text in enumerate(pair.run(unsupported)):
        assert f'DistributedError: rank {rank}: all_reduce of td["n"]["x"] failed: ' in text


def nothing(rank, size):
    for td in (TensorDict(), TensorDict({"s": "x"}), TensorDict({"x": torch.ones(0)}, [0])):
        td.all_reduce()
        td.reduce(0, bucket_bytes=10)
        td.all_gather()


def test_tensordict_without_values_is_served(pair):
    pair.run(nothing)


# ---- structure travels, too --------------------------------------------------------------------


def describe(td):
    return (
        type(td).__name__,
        tuple(td.batch_size),
        td.names,
        list(td.keys(True)),
        {key: leaf.tolist() for key, leaf in td.items(True, True)},
        td.get_non_tensor("s", None),
    )


def full(rank):
    td = make(float(rank), extra={f"of_{rank}": torch.full((3, rank + 1), rank == 1)})
    td.names = ["time"]
    td["s"] = f"rank {rank}"
    return td


def broadcasting(rank, size):
    for src in range(size):
        td = full(rank) if rank == src else TensorDict()
        result = td.broadcast(src)
        assert describe(result) == describe(full(src))
        assert result.is_consolidated()
        assert result.is_locked
    if rank == 0:
        full(1).init_remote(use_broadcast=True)
    else:
        received = TensorDict.from_remote_init(0, use_broadcast=True)
        assert describe(received) == describe(full(1))


def test_broadcast_gives_everybody_the_tensordict_of_one(world):
    world.run(broadcasting)


def gathering(rank, size):
    result = full(rank).all_gather()
    assert [describe(td) for td in result] == [describe(full(r)) for r in range(size)]


def test_all_gather_takes_other_structures(world):
    world.run(gathering)


def scattering(rank, size):
    for src in (0, size - 1):
        tds = [full(r) for r in range(size)] if rank == src else None
        assert describe(TensorDict().scatter(src, tds)) == describe(full(rank))


def test_scatter_gives_each_its_own(world):
    world.run(scattering)


def initialising(rank, size):
    dst = size - 1
    if rank == 0:
        td = full(1)
        td.init_remote(dst=dst)
        td.set_("b", torch.full((3,), 9.0)).set_("s", "later")
        td.send(dst, consolidated=True)
    elif rank == dst:
        td = TensorDict.from_remote_init(src=0)
        assert describe(td) == describe(full(1))
        td.recv(0, consolidated=True)
        assert td["b"].tolist() == [9.0, 9.0, 9.0]
        assert td["s"] == "later"


def test_rank_that_knows_nothing_gets_structure_and_values(world):
    world.run(initialising)


def unpicklable(rank, size, method):
    td = TensorDict({"s": (lambda: None) if rank == 0 else "x"})
    calls = {
        "broadcast": lambda: td.broadcast(0),
        "all_gather": lambda: td.all_gather(),
        "scatter": lambda: td.scatter(0, [td] * size if rank == 0 else None),
        "short": lambda: td.scatter(0, [] if rank == 0 else None),
        "init_remote": lambda: td.init_remote(1) if rank == 0 else TensorDict.from_remote_init(0),
    }
    text = failure_of(calls[method])
    dist.barrier()
    return text


@pytest.mark.parametrize("method", ["broadcast", "all_gather", "scatter", "short", "init_remote"])
def test_tensordict_that_cannot_be_sent_fails_on_every_rank(pair, method):
    first, second = pair.run(unpicklable, method)
    problem = "expected 2 tensordicts" if method == "short" else "expected entries that can be"
    assert first.startswith(f"DistributedError: rank 0: {problem}")
    assert second.startswith("DistributedError: rank 1: rank 0")
    assert problem in second


def stacking(rank, size, dst):
    def row(value):
        return TensorDict(
            {"x": torch.full((2,), value), "n": {"y": torch.full((2, 3), value)}}, [2]
        )

    if rank != dst:
        td = row(float(rank))
        assert td.gather_and_stack(dst) is None
        return
    td = torch.stack([row(-1.0)] * (size - 1), 0)
    pointer = td["x"].data_ptr()
    assert td.gather_and_stack(dst) is td
    assert td["x"].data_ptr() == pointer
    others = [r for r in range(size) if r != dst]
    assert td["x"][:, 0].tolist() == others
    assert td["n", "y"][:, 1, 2].tolist() == others


@pytest.mark.parametrize("dst", [0, 1])
def test_gather_and_stack_fills_rows_in_rank_order(world, dst):
    world.run(stacking, dst)


def stacking_wrong(rank, size, rows):
    td = TensorDict({"x" if rank != 1 else "z": torch.ones(2)}, [2])
    if rank == 0:
        td = td.expand(rows, 2).contiguous()
    return failure_of(lambda: td.gather_and_stack(0))


def test_gather_and_stack_refuses_on_every_rank(world):
    texts = world.run(stacking_wrong, world.size - 1)
    assert 'td["x"] is here, not on rank 1' in texts[0]
    assert 'td["z"] is here, not on rank 0' in texts[1]
    texts = world.run(stacking_wrong, world.size)
    assert all(f"expected a tensordict with {world.size - 1} rows" in text for text in texts)


def stacking_values(rank, size):
    if rank:
        TensorDict({"n": {"s": f"from {rank}"}, "x": torch.ones(1)}, [1]).gather_and_stack(0)
        return None
    td = TensorDict({"n": {"s": "?"}, "x": torch.zeros(size - 1, 1)}, [size - 1, 1])
    td.gather_and_stack(0)
    assert (td["x"] == 1).all()
    return td.get(("n", "s")).tolist()


def test_gather_and_stack_writes_values_that_are_no_tensors(world):
    found = world.run(stacking_values)[0]
    assert found == [[f"from {rank}"] for rank in range(1, world.size)]


def in_nested_stack(rank, size):
    parts = [TensorDict({"s": "a"}, []), TensorDict({"s": "b"}, [])]
    td = TensorDict({"l": LazyStackedTensorDict(*parts)}, [2])
    if rank == 0:
        td = TensorDict({"l": LazyStackedTensorDict(*parts, stack_dim=0).unsqueeze(0)}, [1, 2])
    return failure_of(lambda: td.gather_and_stack(0))


def test_value_in_a_nested_stack_is_named(pair):
    for text in pair.run(in_nested_stack):
        assert "expected no non-tensor values within a nested stack" in text
