"""One world of two ranks and one of four, for the whole session."""

from __future__ import annotations

import pytest
from world import World


@pytest.fixture(scope="session")
def worlds():
    made = {size: World(size) for size in (2, 4)}
    yield made
    for world in made.values():
        world.stop()


@pytest.fixture(params=[2, 4], ids=["two_ranks", "four_ranks"])
def world(request, worlds):
    return worlds[request.param]


@pytest.fixture
def pair(worlds):
    return worlds[2]
