"""Torch functions over sequences of tensordicts, however the sequence came about."""

from __future__ import annotations

import pytest
import torch

from variables.checks import check, td

PROGRAMS = {
    "tuple": lambda x, y: torch.stack((x, y)),
    "star": lambda *tds: torch.stack(tds, 1),
    "tuple_of_new": lambda x, y: torch.cat((x + 1, y * 2)),
    "tuple_by_name": lambda x, y: torch.stack(tensors=(x, y), dim=-1),
    "list_made_a_tuple": lambda x, y: torch.stack(tuple([x, y])),  # noqa: C409
    "same_twice": lambda x, y: torch.cat((x, x, y)),
    "list": lambda x, y: torch.stack([x, y]),
    "unbound_rows": lambda x, y: torch.stack(x.unbind(0) + y.unbind(0)),
    "split_and_joined": lambda x, y: torch.cat(x.split(1) + (y,)),  # noqa: RUF005
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_torch_function_over_a_sequence_of_tensordicts_is_whole(program):
    check(program, [(td(), td(shift=1.0))])


def test_torch_function_over_a_tuple_argument_is_whole():
    check(lambda pair: torch.stack(pair), [((td(), td(shift=1.0)),)])
    check(lambda nested: torch.cat(nested["pair"]), [({"pair": (td(), td(shift=1.0))},)])


def test_torch_function_over_a_tuple_of_tensors_is_as_before():
    check(lambda td: torch.stack((td["a"], td["a"] + 1)), [td()])
