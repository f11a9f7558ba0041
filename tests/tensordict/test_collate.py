"""``collate`` beside that of the reference, and what it adds."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from oracle import oracle, ours
from torch.utils.data import DataLoader

Pair = namedtuple("Pair", ["left", "right"])


def sample(package, n, **more):
    entries = {
        "ids": torch.arange(n),
        "n": {"pts": torch.full((n + 1, 3), float(n))},
        "score": torch.tensor(float(n)),
        **more,
    }
    return package.TensorDict(entries, [])


def samples(package):
    return [sample(package, n) for n in (2, 3, 1)]


def rows(package, *shapes):
    return [package.TensorDict({"a": torch.ones(shape)}, [2]) for shape in shapes]


def show(value):
    """A batch as plain data; the order of keys is ours."""
    if isinstance(value, (ours.TensorDictBase, oracle.TensorDictBase)):
        if type(value).__name__ == "LazyStackedTensorDict":
            return ("lazy", [show(td) for td in value.tensordicts])
        return (list(value.batch_size), {key: show(value.get(key)) for key in list(value.keys())})
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return ("nested", value.layout, [part.tolist() for part in value.unbind()])
        return (value.dtype, value.tolist())
    if isinstance(value, dict):
        return {key: show(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, [show(item) for item in value])
    return value


PTS = ("n", "pts")
PROGRAMS = {
    "lazy": lambda p: p.collate(samples(p)),
    "dense": lambda p: p.collate([sample(p, 2), sample(p, 2)]),
    "pad": lambda p: p.collate(samples(p), pad_keys={"ids": -1, PTS: 0.5}),
    "pad_some": lambda p: p.collate(samples(p), pad_keys={"ids": -1}),
    "mask": lambda p: p.collate(samples(p), pad_keys={"ids": -1, PTS: 0}, mask_key="mask"),
    "mask_nested": lambda p: p.collate(
        samples(p), pad_keys={"ids": -1, PTS: 0}, mask_key=("n", "m")
    ),
    "nested": lambda p: p.collate(samples(p), pad_keys={"ids": -1}, nested_keys=[PTS]),
    "nested_rows": lambda p: p.collate(rows(p, (2, 2), (2, 3)), nested_keys=["a"]),
    "nested_beside_lazy": lambda p: p.collate(samples(p), nested_keys=[PTS]),
    "key_in_both": lambda p: p.collate(samples(p), pad_keys={"ids": 0}, nested_keys=["ids"]),
    "mask_alone": lambda p: p.collate(samples(p), mask_key="m"),
    "mask_taken": lambda p: p.collate(samples(p), pad_keys={"ids": 0}, mask_key="score"),
    "missing": lambda p: p.collate(samples(p), pad_keys={"zz": 0}),
    "missing_nested": lambda p: p.collate(samples(p), nested_keys=["zz"]),
    "missing_in_one": lambda p: p.collate(
        [sample(p, 2, z=torch.ones(2)), sample(p, 3)], pad_keys={"z": 0}
    ),
    "rows_to_pad": lambda p: p.collate(rows(p, (2, 2), (2, 3)), pad_keys={"a": 0}),
    "scalar": lambda p: p.collate(samples(p), pad_keys={"score": 0}),
    "other_dims": lambda p: p.collate(
        [p.TensorDict({"a": torch.ones(n, n)}) for n in (1, 2)], pad_keys={"a": 0}
    ),
    "booleans": lambda p: p.collate(
        [p.TensorDict({"a": torch.ones(n, dtype=torch.bool)}) for n in (1, 2)], pad_keys={"a": 0}
    ),
    "tensors": lambda p: p.collate([torch.ones(2), torch.zeros(2)]),
    "tuples": lambda p: p.collate([(sample(p, 2), 1), (sample(p, 2), 2)]),
    "namedtuples": lambda p: p.collate(
        [Pair(torch.ones(1), "x"), Pair(torch.zeros(1), "y")],
    ),
    "mappings": lambda p: p.collate([{"a": torch.ones(1), "b": {"c": 1.0}}] * 2),
    "pad_in_mappings": lambda p: p.collate(
        [{"a": sample(p, n)} for n in (1, 2)], pad_keys={"ids": 0, PTS: 0}
    ),
    "texts": lambda p: p.collate(["x", "y"]),
    "lists": lambda p: p.collate([[1, 2], [3, 4]]),
    "nothing": lambda p: p.collate([]),
    "no_list": lambda p: p.collate((sample(p, 2), sample(p, 2))),
    "whole": lambda p: p.collate(sample(p, 2)),
    "pad_without_tensordicts": lambda p: p.collate([1, 2], pad_keys={"ids": 0}),
}
_KINDS = (KeyError, ValueError, RuntimeError)


@pytest.mark.parametrize("name", PROGRAMS)
def test_collate_does_what_the_reference_does(name):
    outcomes = []
    for package in (oracle, ours):
        try:
            outcomes.append(show(PROGRAMS[name](package)))
        except _KINDS as error:
            outcomes.append({kind for kind in _KINDS if isinstance(error, kind)})
    expected, found = outcomes
    if isinstance(expected, set):
        assert isinstance(found, set)
        assert expected <= found
    else:
        assert found == expected


def test_samples_are_left_as_they_are_and_keys_in_place():
    tds = [td.lock_() for td in samples(ours)]
    batch = ours.collate(tds, pad_keys={"ids": 0}, nested_keys=[PTS], mask_key="m")
    assert list(batch.keys()) == ["ids", "n", "score", "m"]
    assert [list(td.keys()) for td in tds] == [["ids", "n", "score"]] * 3
    assert [td["ids"].tolist() for td in tds] == [[0, 1], [0, 1, 2], [0]]


class Item(ours.TensorClass):
    """A sample with a mask."""

    ids: torch.Tensor
    mask: ours.TensorDict | None = None


def test_tensorclass_keeps_its_type():
    items = [Item(ids=torch.ones(n)) for n in (1, 2)]
    batch = ours.collate(items, pad_keys={"ids": -1.0}, mask_key="mask")
    assert isinstance(batch, Item)
    assert batch.ids.tolist() == [[1.0, -1.0], [1.0, 1.0]]
    assert batch.mask["ids"].tolist() == [[True, False], [True, True]]


def test_gradients_reach_the_samples():
    leaves = [torch.ones(n, requires_grad=True) for n in (1, 2)]
    tds = [ours.TensorDict({"a": leaf, "b": leaf * 2}) for leaf in leaves]
    batch = ours.collate(tds, pad_keys={"a": 0.0}, nested_keys=["b"])
    (batch["a"].sum() + batch["b"].values().sum()).backward()
    assert [leaf.grad.tolist() for leaf in leaves] == [[3.0], [3.0, 3.0]]


def test_loader_takes_it_as_collate_fn():
    data = [(sample(ours, 2), label) for label in range(5)]
    batches = list(DataLoader(data, batch_size=2, collate_fn=ours.collate))
    assert [td.batch_size[0] for td, _ in batches] == [2, 2, 1]
    assert [labels.tolist() for _, labels in batches] == [[0, 1], [2, 3], [4]]
