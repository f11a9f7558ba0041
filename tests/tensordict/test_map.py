"""``map`` and ``map_iter``: chunks in worker processes."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import pickle

import map_functions as functions
import pytest
import torch
from oracle import describe, oracle, ours, outcome

from tdcompile.errors import WorkerError

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

FORK = {"num_workers": 2, "mp_start_method": "fork"}


def make(package=ours, size=(20,)):
    a = torch.arange(torch.Size(size).numel()).reshape(size)
    n = package.TensorDict({"x": a * 10.0}, size)
    return package.TensorDict({"a": a, "n": n}, size)


@pytest.fixture(autouse=True)
def _no_stray_process():
    before = set(multiprocessing.active_children())
    yield
    if set(multiprocessing.active_children()) - before:
        # Pools of the reference end with the collector; ours is to leave none.
        gc.collect()
    assert set(multiprocessing.active_children()) <= before


PROGRAMS = {
    "workers": lambda td, **kw: td.map(functions.plus_one, **kw),
    "chunksize": lambda td, **kw: td.map(functions.plus_one, chunksize=3, **kw),
    "num_chunks": lambda td, **kw: td.map(functions.plus_one, num_chunks=3, **kw),
    "elements": lambda td, **kw: td.map(functions.plus_one, chunksize=0, **kw),
    "indexed": lambda td, **kw: td.map(
        functions.plus_one, num_chunks=3, index_with_generator=True, **kw
    ),
    "last_dim": lambda td, **kw: td.map(functions.plus_one, dim=-1, **kw),
    "last_elements": lambda td, **kw: td.map(functions.plus_one, -1, chunksize=0, **kw),
    "new_key": lambda td, **kw: td.map(functions.add_key, **kw),
    "tensor": lambda td, **kw: td.map(functions.first_leaf, **kw),
    "some_none": lambda td, **kw: td.map(functions.large_only, chunksize=5, **kw),
    "none": lambda td, **kw: td.map(functions.nothing, **kw),
    "reshaped": lambda td, **kw: td.map(functions.flattened, **kw),
    "out": lambda td, **kw: td.map(functions.plus_one, out=td.clone(), chunksize=3, **kw),
    "out_elements": lambda td, **kw: td.map(functions.plus_one, out=td.clone(), chunksize=0, **kw),
    "out_none": lambda td, **kw: td.map(functions.nothing, out=td.clone(), **kw),
    "out_small": lambda td, **kw: td.map(functions.plus_one, out=td[:9].clone(), **kw),
    "both_numbers": lambda td, **kw: td.map(functions.plus_one, chunksize=1, num_chunks=1, **kw),
    "negative": lambda td, **kw: td.map(functions.plus_one, chunksize=-1, **kw),
    "no_chunks": lambda td, **kw: td.map(functions.plus_one, num_chunks=0, **kw),
    "bad_dim": lambda td, **kw: td.map(functions.plus_one, dim=2, **kw),
    "raises": lambda td, **kw: td.map(functions.fail_on_seven, **kw),
    "iterated": lambda td, **kw: list(td.map_iter(functions.plus_one, chunksize=3, **kw)),
    "iterated_none": lambda td, **kw: list(td.map_iter(functions.large_only, chunksize=5, **kw)),
    "iterated_cut": lambda td, **kw: list(
        td.map_iter(functions.plus_one, num_chunks=3, index_with_generator=False, **kw)
    ),
    "shuffled_cut": lambda td, **kw: list(
        td.map_iter(functions.plus_one, shuffle=True, index_with_generator=False, **kw)
    ),
}


TWO_DIMS = ("last_dim", "last_elements", "reshaped")


@pytest.mark.parametrize(
    ("name", "size"), [(name, (5, 4) if name in TWO_DIMS else (20,)) for name in PROGRAMS]
)
def test_map_does_what_the_reference_does(name, size):
    def program(package):
        kwargs = {**FORK, "generator": torch.Generator()}
        return PROGRAMS[name](make(package, size), **kwargs)

    found, expected = outcome(program, ours), outcome(program, oracle)
    if isinstance(expected, set):
        assert isinstance(found, set)
        assert expected <= found
    else:
        assert found == expected


def test_spawned_worker_and_a_partial():
    td = make()
    result = td.map(
        functools.partial(functions.add_key), num_workers=1, mp_start_method="spawn", chunksize=4
    )
    assert describe(result) == describe(functions.add_key(td))


@pytest.mark.parametrize("index_with_generator", [False, True])
def test_results_come_in_the_order_of_chunks(index_with_generator):
    td = make()
    kwargs = {**FORK, "chunksize": 2, "index_with_generator": index_with_generator}
    assert td.map(functions.later_is_faster, **kwargs)["a"].tolist() == list(range(20))
    found = [chunk["a"].tolist() for chunk in td.map_iter(functions.later_is_faster, **kwargs)]
    assert found == [[n, n + 1] for n in range(0, 20, 2)]


def test_pool_of_the_caller_is_used_and_left_open():
    td = make()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        expected = describe(functions.plus_one(td))
        for _ in range(2):
            assert describe(td.map(functions.plus_one, pool=pool, chunksize=3)) == expected
        chunks = list(td.map_iter(functions.plus_one, pool=pool, chunksize=3))
        assert describe(torch.cat(chunks)) == expected
        with pytest.raises(ValueError, match="seven is not liked"):
            td.map(functions.fail_on_seven, pool=pool)


def test_seeds_do_not_depend_on_workers():
    def run(seed, num_workers, chunksize=5):
        generator = torch.Generator().manual_seed(seed)
        kwargs = {"mp_start_method": "fork", "generator": generator, "chunksize": chunksize}
        return make().map(functions.draws, num_workers=num_workers, **kwargs)

    first = run(0, 1)
    assert describe(run(0, 2)) == describe(first)
    for key in ("torch", "python", "numpy"):
        assert first[key][::5].unique().numel() == 4, key
        assert (run(1, 2)[key] != first[key]).all(), key


def test_seeds_follow_the_global_generator():
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found += [make().map(functions.draws, **FORK)["torch"] for _ in range(2)]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])


def test_shuffled_chunks_hold_every_element_once_and_are_reproducible():
    def run(seed):
        generator = torch.Generator().manual_seed(seed)
        chunks = make(size=(3, 20)).map_iter(
            functions.plus_one, 1, chunksize=6, shuffle=True, generator=generator, **FORK
        )
        return [chunk["a"] - 1 for chunk in chunks]

    found = run(0)
    assert [chunk.shape[1] for chunk in found] == [6, 6, 6, 2]
    whole = torch.cat(found, 1)
    assert whole[0].tolist() != list(range(20))
    assert sorted(whole[0].tolist()) == list(range(20))
    assert torch.equal(whole[1], whole[0] + 20)
    assert all(torch.equal(left, right) for left, right in zip(found, run(0), strict=True))


def test_workers_are_replaced_and_have_the_threads_asked_for():
    td = make()
    pids = td.map(functions.process, chunksize=2, max_tasks_per_child=2, **FORK)
    assert 5 <= pids.unique().numel() <= 10
    assert td.map(functions.process, chunksize=2, **FORK).unique().numel() <= 2
    assert td.map(functions.threads, worker_threads=2, **FORK).tolist() == [2] * 20


def test_writes_in_place_reach_the_caller():
    td = make()
    assert td.map(functions.bump, **FORK) is None
    assert td["a"].tolist() == list(range(1, 21))


@pytest.mark.parametrize("method", ["map", "map_iter"])
def test_exception_has_the_traceback_of_the_worker(method):
    with pytest.raises(ValueError, match="seven is not liked") as caught:
        list(getattr(make(), method)(functions.fail_on_seven, chunksize=2, **FORK))
    assert "in fail_on_seven\n    raise ValueError" in str(caught.value.__cause__)
    assert caught.value.__notes__ == ["raised in a worker process, for chunk 3"]


def test_exception_that_cannot_be_pickled_comes_as_text():
    with pytest.raises(WorkerError, match="OddError: odd"):
        make().map(functions.fail_oddly, **FORK)


@pytest.mark.parametrize(
    ("function", "code"),
    [(functions.end_process, 3), (functions.interrupt, 1)],
    ids=["exit", "interrupt"],
)
def test_worker_that_ends_is_an_error(function, code):
    with pytest.raises(WorkerError, match=rf"chunk \d+, found that it had ended .* code {code}"):
        make().map(function, **FORK)


def test_loop_left_early_ends_the_workers():
    before = set(multiprocessing.active_children())
    for chunk in make().map_iter(functions.plus_one, chunksize=1, **FORK):
        assert chunk["a"].tolist() == [1]
        break
    assert set(multiprocessing.active_children()) <= before


def test_function_that_workers_cannot_import_is_told_of():
    with pytest.raises(pickle.PicklingError, match='or use mp_start_method="fork"'):
        make().map(lambda td: td, num_workers=1, mp_start_method="spawn")
    assert make().map(lambda td: td + 1, **FORK)["a"].tolist() == list(range(1, 21))


def test_chunk_that_cannot_be_sent_is_told_of():
    td = make().set("s", lambda: None)
    with pytest.raises((pickle.PicklingError, AttributeError)) as caught:
        td.map(functions.plus_one, **FORK)
    assert caught.value.__notes__ == ["raised while chunk 0 was sent to a worker process"]


def test_more_chunks_than_files_may_be_open():
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        td = make(size=(300,))
        assert td.map(functions.plus_one, chunksize=1, **FORK)["n", "x"].shape == (300,)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_elements_give_an_empty_result():
    result = make(size=(0, 4)).map(functions.add_key, **FORK)
    assert result.batch_size == (0, 4)
    assert "new" in result


@pytest.mark.parametrize("name", ["num_workers", "max_tasks_per_child"])
def test_numbers_that_make_no_sense_are_refused(name):
    with pytest.raises(ValueError, match=f"expected {name} to be"):
        make().map(functions.plus_one, **{name: 0})


def test_progress_bar_is_shown_if_there_is_one(monkeypatch):
    import sys
    from types import SimpleNamespace

    seen = []

    def tqdm(results, total):
        for result in results:
            seen.append(total)
            yield result

    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=tqdm))
    make().map(functions.plus_one, chunksize=5, pbar=True, **FORK)
    assert seen == [4] * 4
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert make().map(functions.plus_one, pbar=True, **FORK)["a"][0] == 1


class Item(ours.TensorClass):
    """A tensorclass that workers get."""

    a: torch.Tensor


def test_elements_that_differ_give_a_lazy_stack():
    result = make(size=(4,)).map(functions.name_key, chunksize=0, **FORK)
    assert isinstance(result, ours.LazyStackedTensorDict)
    assert [list(td.keys()) for td in result.tensordicts] == [["key_0"], ["key_1"]] * 2


def test_other_kinds_are_mapped():
    item = Item(a=torch.arange(6), batch_size=[6])
    result = item.map(functions.check_class, **FORK)
    assert isinstance(result, Item)
    assert result.a.tolist() == list(range(1, 7))
    stack = ours.LazyStackedTensorDict(*make(size=(4, 5)).unbind(0))
    for dim in (0, 1):
        found = stack.map(functions.plus_one, dim, chunksize=2, **FORK)
        assert torch.equal(found["a"], stack["a"] + 1)
    found = stack.map(functions.plus_one, chunksize=0, **FORK)
    assert torch.equal(found["n", "x"], stack["n", "x"] + 1)
    params = ours.TensorDictParams(ours.TensorDict({"x": torch.ones(3)}, [3]))
    with pytest.raises(RuntimeError, match="Cannot call map on a TensorDictParams"):
        params.map(functions.plus_one)


@pytest.mark.parametrize("kind", ["mapped", "shared", "tensor"])
@pytest.mark.parametrize("chunksize", [0, 3])
def test_workers_write_to_out_in_shared_memory(kind, chunksize):
    td = make()
    function = functions.plus_one
    if kind == "tensor":
        out, function = torch.zeros(20, dtype=torch.long).share_memory_(), functions.first_leaf
    elif kind == "mapped":
        out = make().zero_().memmap_()
    else:
        out = make().zero_().share_memory_()
    assert td.map(function, out=out, chunksize=chunksize, **FORK) is out
    assert (out if kind == "tensor" else out["a"]).tolist() == list(range(1, 21))


def test_values_that_are_no_tensors_are_mapped():
    td = ours.TensorDict({"a": torch.arange(4), "s": ours.NonTensorStack(*"wxyz")}, [4])
    result = td.map(functions.label, chunksize=0, **FORK)
    assert result["label"] == ["0: w", "1: x", "2: y", "3: z"]
    assert result["s"] == ["w", "x", "y", "z"]
