"""Thousands of histories of the real core, in none of which anything goes wrong.

``REDLOCK_HISTORIES`` says how many; CI plays 20,000. A failing seed is shown with
``python -m tests.simulation.soak --seed N``, and run alone with
``REDLOCK_FIRST_SEED=N REDLOCK_HISTORIES=1``.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.campaign import Tally, campaign, failure_report

HISTORIES = int(
    os.environ.get("REDLOCK_HISTORIES", "20000" if os.environ.get("CI") else "3000")
)
FIRST = int(os.environ.get("REDLOCK_FIRST_SEED", "0"))
ENOUGH = 3000  # histories after which all that is rare has occurred

# What must have occurred, or what was not found means nothing.
OCCURRENCES = (
    *("verdict won", "verdict held", "verdict contended", "verdict unreachable"),
    *("vote granted", "vote taken", "vote quarantined"),
    *("vote not yet synced", "vote refused", "vote silent", "no vote yet"),
    *("fault crash lose", "fault crash keep", "fault crash rollback", "fault flush"),
    *("fault forget scripts", "fault hang", "fault cut", "fault slow"),
    *("fault reset", "fault reset trap", "fault pause", "fault pause trap"),
    *("fault ambush break", "fault ambush delay", "fault ambush pause"),
    *("fault ambush death", "fault death killed", "fault death powered"),
    *("fault death trap killed", "fault interrupt trap", "fault step"),
    *("renewed", "lost", "dropped", "freed", "released by hand"),
    *("extend granted", "extend free", "extend taken"),
    *("restore granted", "restore taken", "raise_fence granted", "raise_fence free"),
    *("release 0", "release 1", "inspect free", "inspect taken"),
    *("counters granted", "counters quarantined", "counters unsynced"),
    *("recovered from others", "recovered with floor", "too many unsynced"),
    *("script forgotten", "script taught", "partial send", "loading"),
    *("line_up taken", "line_up free", "step_out granted", "subscribed"),
    *("woken in line", "wake-up lost", "wake-up passed over"),
)


@pytest.fixture(scope="module")
def tally() -> Tally:
    """Give what became of all histories of this run."""
    total = Tally()
    for part in campaign(range(FIRST, FIRST + HISTORIES)):
        total.add(part)
    return total


@pytest.mark.timeout(900)
def test_nothing_goes_wrong(tally: Tally) -> None:
    """In no history does anything happen that the witness forbids."""
    if tally.failures:
        seed, finding = min(tally.failures)
        seeds = sorted(seed for seed, _ in tally.failures)
        pytest.fail(
            f"seeds {seeds}\n\n{finding}\n\n{failure_report(seed)}", pytrace=False
        )

    assert tally.histories == HISTORIES


@pytest.mark.skipif(HISTORIES < ENOUGH, reason="too few histories for what is rare")
@pytest.mark.parametrize("what", OCCURRENCES)
def test_histories_show(tally: Tally, what: str) -> None:
    """Each fault, vote and verdict, each way to recover, really occurs."""
    assert tally.coverage[what]
