"""The simulator finds bugs that are planted into the code."""

from __future__ import annotations

import pytest

from tests.simulation.history import play
from tests.simulation.patches import simulated_core
from tests.simulation.planner import plan_of
from tests.simulation.planted_bugs import PLANTED_BUGS, PlantedBug

_PATIENCE = 300  # seconds: several thousand histories on a slow machine


def first_found(bug: PlantedBug) -> int | None:
    """Return the seed of the first history that shows a planted bug."""
    with simulated_core(), bug.planted():
        for seed in range(bug.within):
            outcome = play(plan_of(seed, bug.style), ignored=bug.ignored)
            if {finding.kind for finding in outcome.findings} & {*bug.findings}:
                return seed
    return None


@pytest.mark.timeout(_PATIENCE)
@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=str)
def test_simulator_finds(bug: PlantedBug) -> None:
    """Each planted bug shows in the stated number of histories, as its own finding."""
    assert first_found(bug) is not None, (
        f"{bug.within} histories did not show the planted bug {bug.name!r}"
    )


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=str)
def test_planted_bug_is_removed_afterwards(bug: PlantedBug) -> None:
    """The right code is in its place after the block of a planted bug."""
    before = [getattr(target, name) for target, name, _ in bug.patches()]

    with bug.planted():
        pass

    assert [getattr(target, name) for target, name, _ in bug.patches()] == before
