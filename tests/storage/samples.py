"""Tensordicts of every sort of entry, of either package, for the tests of files.

Key names: :func:`sample` (every sort of entry), :func:`plain` (what every format holds),
:func:`same` (equal in structure and values), :func:`tree` (the files of a folder).
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

import tdcompile as ours


def plain(package=ours):
    """Tensors of several dtypes, nested, with names, and a text."""
    make = package.TensorDict
    return make(
        {
            "obs": torch.arange(6.0).reshape(3, 2),
            "flag": torch.tensor([True, False, True]),
            "half": torch.ones(3, dtype=torch.float16),
            "n": {"x": torch.arange(3), "deep": {"y": torch.ones(3, 2, dtype=torch.bfloat16)}},
            "c": torch.tensor([1 + 2j, 3j, 4.0]),
            "none": torch.zeros(3, 0),
            "s": "word",
        },
        batch_size=[3],
        names=["time"],
    )


def sample(package=ours):
    """All of :func:`plain`, and keys and values that are hard on files."""
    td = plain(package)
    for key in ("a/b", "..", ".", "x y", "é%", "%2F", "meta.json", "", "type", "CON"):
        td[key] = torch.full((3,), float(len(key)))
    td["../up"] = package.TensorDict({"z": torch.ones(3)}, batch_size=[3])
    td.set_non_tensor("numbers", {"a": [1, 2.5, None, True], "b": {}})
    return td


def same(first, second, ordered=True):
    """Check that two tensordicts (of two packages) have the same entries in the same order."""
    if ordered:
        assert list(first.keys()) == list(second.keys())
    assert set(first.keys()) == set(second.keys())
    assert tuple(first.batch_size) == tuple(second.batch_size)
    assert list(first.names) == list(second.names)
    for key in list(first.keys()):
        one, other = first.get(key), second.get(key)
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype, key
            assert one.shape == other.shape, key
            assert torch.equal(one.as_subclass(torch.Tensor), other.as_subclass(torch.Tensor)), key
        elif not is_value(one):
            same(one, other, ordered)
        else:
            assert one.data == other.data, key
            assert type(one.data) is type(other.data), key


def is_value(entry):
    return type(entry).__name__ in ("NonTensorData", "NonTensorStack", "MetaData")


def tree(folder):
    """Return the files below a folder with their bytes."""
    root = Path(folder)
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def quietly(function, *args, **kwargs):
    """Call the other package without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)
