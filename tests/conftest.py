"""What every test gets: a fixed seed, and a Dynamo without memory of earlier tests."""

from __future__ import annotations

import sys

import pytest
import torch

pytest.register_assert_rewrite("oracle", "differential", "pairs")


@pytest.fixture(autouse=True)
def _fresh_state():
    """Seed, and forget compiled code where Dynamo is loaded; loading it would take a second."""
    torch.manual_seed(0)
    _reset_dynamo()
    yield
    _reset_dynamo()


def _reset_dynamo():
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
