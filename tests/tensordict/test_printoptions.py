"""What ``repr`` shows under ``set_printoptions``, as the oracle's."""

from __future__ import annotations

import pytest
import tensordict as oracle
import torch

import tdcompile as ours

OPTIONS = {
    "default": {},
    "detailed": {"compact": False},
    "terse": {"verbose": False},
    "terse_detailed": {"verbose": False, "compact": False},
    "everything": {
        "show_grad": True,
        "show_is_contiguous": True,
        "show_is_view": True,
        "show_storage_size": True,
    },
    "plain": {"plain": True},
    "insertion": {"sort_keys": "insertion"},
    "no_head": {"show_device": False, "show_batch_size": False},
    "no_dtype": {"show_dtype": False},
    "no_shape": {"show_shape": False, "show_is_shared": False},
    "compact_ignores": {"show_grad": True, "compact": True},
}


def example(package):
    entries = {
        "b": torch.ones(3, 4, requires_grad=True),
        "a": torch.arange(24.0).reshape(3, 8)[:, ::2],
        "n": {"i": torch.arange(3, dtype=torch.int), "e": {}},
        "s": "x",
    }
    return package.TensorDict(entries, batch_size=[3], device="cpu")


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_repr_with_options_matches_oracle(options):
    with ours.set_printoptions(**options), oracle.set_printoptions(**options):
        assert repr(example(ours)) == repr(example(oracle))
        assert repr(ours.TensorDict()) == repr(oracle.TensorDict())
        assert ours.get_printoptions() == oracle.get_printoptions()
    assert ours.get_printoptions() == oracle.get_printoptions()


def test_set_printoptions_stays_until_it_is_undone():
    before = ours.get_printoptions()
    options = ours.set_printoptions(show_device=False)
    options.set()
    assert "device" not in repr(example(ours))
    options.__exit__(None, None, None)
    assert ours.get_printoptions() == before


def test_keys_are_shown_in_the_order_of_a_function():
    td = ours.TensorDict({"xb": 1, "ya": 2, "za": 3})
    with ours.set_printoptions(sort_keys=lambda key: key[::-1]):
        assert repr(td) == "TensorDict(batch_size=[], fields={ya: i64[], za: i64[], xb: i64[]})"


def test_set_printoptions_decorates_a_function():
    @ours.set_printoptions(show_device=False)
    def show():
        return repr(example(ours))

    assert "device" not in show()
    assert "device" in repr(example(ours))


def test_unknown_option_raises():
    with pytest.raises(TypeError, match="Unknown printoptions"):
        ours.set_printoptions(nonsense=True)
