"""``all_reduce`` in compiled code: one graph, one coalesced collective, eager values."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from world import failure_of

from tdcompile import TensorDict

OPS = {"sum": None, "max": dist.ReduceOp.MAX, "product": dist.ReduceOp.PRODUCT}


def make(rank, *, dtype=None, swapped=False, batch=3):
    entries = {
        "b": torch.full((batch,), 1.0 + rank),
        "n": {"x": torch.arange(batch * 2.0).reshape(batch, 2) + rank, "s": "text"},
        "a": torch.full((batch, 1), 5.0 + rank, dtype=dtype),
    }
    if swapped:
        entries = dict(reversed(entries.items()))
    return TensorDict(entries, [batch])


def compiled(program, backend="eager", **kwargs):
    """The compiled program and the counter of its graphs."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    return torch.compile(program, backend=counter, fullgraph=True, **kwargs), counter


def calls(counter, name):
    """The nodes of all graphs that call an operator."""
    return [
        node
        for graph in counter.graphs
        for node in graph.graph.nodes
        if node.op == "call_function" and str(node.target).endswith(f"_c10d_functional.{name}")
    ]


def same(left, right):
    assert list(left.keys(True)) == list(right.keys(True))
    for key, leaf in left.items(True, True):
        torch.testing.assert_close(leaf, right[key], rtol=0, atol=0)


def installed(function):
    """Run on a rank with the trackers installed."""

    def run(*args):
        import tdcompile

        with tdcompile.install(strict=True):
            return function(*args)

    return run


def reducing(rank, size, op, check, backend, dtype):
    @installed
    def main():
        def program(td):
            td.all_reduce(OPS[op], check=check)
            return td["b"] * 2

        step, counter = compiled(program, backend)
        for turn in range(2):
            td, eager = (make(rank + turn, dtype=dtype, swapped=rank == 1) for _ in range(2))
            pointers = [leaf.data_ptr() for leaf in td.values(True, True)]
            result = step(td)
            eager.all_reduce(OPS[op])
            same(td, eager)
            assert pointers == [leaf.data_ptr() for leaf in td.values(True, True)]
            assert torch.equal(result, eager["b"] * 2)
        assert counter.frame_count == 1
        kinds = 1 if dtype is None else 2
        assert len(calls(counter, "all_reduce_coalesced")) == kinds
        assert len(calls(counter, "all_reduce")) == int(check)

    main()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("check", [True, False], ids=["check", "plain"])
def test_compiled_all_reduce_is_one_coalesced_collective(pair, op, check):
    pair.run(reducing, op, check, "eager", None)


@pytest.mark.parametrize(
    ("backend", "dtype"), [("aot_eager", None), ("eager", torch.int32)], ids=["aot", "dtypes"]
)
def test_compiled_all_reduce_on_another_backend_and_with_two_dtypes(worlds, backend, dtype):
    worlds[2 if dtype is None else 4].run(reducing, "sum", True, backend, dtype)


def odd(rank, size):
    """Leaves that share memory, need gradients, are transposed or empty; a dynamic batch."""

    @installed
    def main():
        def build(batch):
            leaf = torch.full((batch,), 1.0 + rank)
            return TensorDict(
                {
                    "a": leaf,
                    "again": leaf,
                    "grad": torch.full((batch,), 2.0 + rank, requires_grad=True),
                    "t": (torch.arange(2.0 * batch).reshape(2, batch) + rank).t(),
                    "none": torch.ones(batch, 0),
                },
                [batch],
            )

        step, counter = compiled(lambda td: td.all_reduce(), dynamic=True)
        for batch in (3, 4, 7):
            td, eager = build(batch), build(batch)
            step(td)
            eager.all_reduce()
            same(td, eager)
            assert td["grad"].requires_grad
        assert counter.frame_count == 1

    main()


def test_compiled_all_reduce_takes_odd_leaves_and_any_batch(pair):
    pair.run(odd)


def in_group(rank, size):
    group = dist.new_group([0, size - 1])

    @installed
    def main():
        step, counter = compiled(lambda td: td.all_reduce(group=group))
        td, eager = make(rank), make(rank)
        if rank in (0, size - 1):
            step(td)
            assert counter.frame_count == 1
        eager.all_reduce(group=group)
        same(td, eager)

    main()


def test_compiled_all_reduce_knows_groups(worlds):
    worlds[4].run(in_group)


CHANGES = {
    "renamed": lambda td: td.rename_key_("b", "c"),
    "dtype": lambda td: td.set("b", td["b"].double()),
    "shape": lambda td: td.set("b", torch.ones(3, 2)).set(("n", "x"), torch.ones(3)),
}


def mismatched(rank, size, change):
    @installed
    def main():
        td = make(rank)
        if rank == 1:
            CHANGES[change](td)
        before = td.clone()
        step, _ = compiled(lambda td: td.all_reduce())
        text = failure_of(lambda: step(td))
        same(td, before)
        return text

    return main()


@pytest.mark.parametrize("change", CHANGES)
def test_compiled_all_reduce_refuses_ranks_that_differ(pair, change):
    for text in pair.run(mismatched, change):
        assert "all_reduce: expected the same keys, shapes and dtypes on every rank" in text


def breaking(rank, size):
    """What has no place in a graph runs eagerly, with the same values."""
    import tdcompile

    with tdcompile.install(strict=True):
        torch._dynamo.reset()

        @torch.compile(backend="eager")
        def step(td):
            td["b"] = td["b"] + 1
            works = td.all_reduce(async_op=True)
            for work in works:
                work.wait()
            td.reduce(0)
            everybody = td.broadcast(0)
            return everybody["b"] + td.all_gather()[1]["b"] * 0

        result = step(make(rank))
    first = sum(2.0 + r for r in range(size))
    assert result.tolist() == [first * size] * 3


def test_other_transfers_break_the_graph_and_are_right(pair):
    pair.run(breaking)
