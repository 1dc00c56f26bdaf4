"""The simulator is able to fail: it finds bugs that are planted into the code."""

from __future__ import annotations

import pytest

from tests.simulation.history import play
from tests.simulation.planning import plan_of
from tests.simulation.plants import PLANTS, Plant
from tests.simulation.seams import simulated_seams

_PATIENCE = 300  # seconds: several thousand histories on a slow machine


def first_found(plant: Plant) -> int | None:
    """Return the seed of the first history that shows a planted bug."""
    with simulated_seams(), plant.planted():
        for seed in range(plant.within):
            outcome = play(plan_of(seed, plant.style), blind_to=plant.blind_to)
            if {finding.kind for finding in outcome.findings} & {*plant.found_as}:
                return seed
    return None


@pytest.mark.timeout(_PATIENCE)
@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_simulator_finds(plant: Plant) -> None:
    """Each planted bug shows within the stated number of histories, by its name."""
    assert first_found(plant) is not None, (
        f"{plant.within} histories did not show the planted bug {plant.name!r}"
    )


@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_plant_is_gone_afterwards(plant: Plant) -> None:
    """A planted bug leaves the right code in its place."""
    before = [getattr(target, name) for target, name, _ in plant.patches()]

    with plant.planted():
        pass

    assert [getattr(target, name) for target, name, _ in plant.patches()] == before
