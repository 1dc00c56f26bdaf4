"""Thousands of histories of the real core, none of which breaks a rule.

``REDLOCK_HISTORIES`` is their number, 3,000 by default; `make test` plays 60.
Show a failing seed with ``python -m tests.simulation.soak --seed N``. Run it alone with
``REDLOCK_FIRST_SEED=N REDLOCK_HISTORIES=1``.
"""

from __future__ import annotations

import itertools
import os

import pytest

from tests.simulation.soak import Tally, failure_report, play_seeds

HISTORIES = int(os.environ.get("REDLOCK_HISTORIES", "3000"))
FIRST = int(os.environ.get("REDLOCK_FIRST_SEED", "0"))
SOME = 60
ENOUGH = 3000  # histories after which all rare events have occurred

# Histories without these events would prove nothing about them.
EVENTS = (
    *("verdict won", "verdict held", "verdict contended", "verdict unreachable"),
    *("vote granted", "vote taken", "vote quarantined"),
    *("vote not yet confirmed", "vote refused", "vote silent", "no vote yet"),
    *("fault crash lose", "fault crash keep", "fault crash rollback", "fault flush"),
    *("fault forget scripts", "fault hang", "fault cut", "fault slow", "fault reset"),
    *("fault reset at operation", "fault pause", "fault pause at operation"),
    *("fault on call break", "fault on call delay", "fault on call pause"),
    *("fault on call death", "fault death killed", "fault death powered"),
    *("fault death at operation killed", "fault interrupt at operation"),
    *("fault clock step", "renewed", "lost", "dropped"),
    *("released for a dead client", "released by a call"),
    *("extend granted", "extend free", "extend taken", "renewed together"),
    *("restore granted", "restore taken", "raise_fence granted", "raise_fence free"),
    *("release 0", "release 1", "inspect free", "inspect taken"),
    *("counters granted", "counters quarantined", "counters unsynced"),
    *("recovered from others", "recovered with floor"),
    *("script unknown", "script loaded", "partial send", "loading", "subscribed"),
    *("join_wait_queue taken", "join_wait_queue free", "leave_wait_queue granted"),
    *("acquire_permits granted", "acquire_permits taken", "all permits held"),
    *("acquire_permits quarantined", "inspect_permits granted"),
    "join_permit_queue granted",
    *(
        "fault forget meta",
        "fault come back",
        "fault evict",
        "acquire evicts",
        "fault command init",
        "fault command reconfigure",
    ),
    *("operator init done", "operator reconfigure done"),
    *("close quarantined", "close free", "open granted"),
    *("abort granted", "reopen granted", "initialize granted", "note granted"),
    *("wake-up sent", "wake-up lost", "wake-up without a subscriber"),
)


def batches() -> list[range]:
    """Return the seeds, in batches that processes of pytest can share."""
    count = max(1, HISTORIES // ENOUGH)
    edges = [FIRST + HISTORIES * i // count for i in range(count + 1)]
    return [range(*pair) for pair in itertools.pairwise(edges)]


@pytest.mark.timeout(300)
def test_some_histories_break_no_rule() -> None:
    """No history has a finding. Their seeds follow those of the long test."""
    play_without_findings(range(FIRST + HISTORIES, FIRST + HISTORIES + SOME))


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seeds", batches(), ids=str)
def test_histories_break_no_rule(seeds: range) -> None:
    """No history has a finding; each fault, vote, verdict and recovery occurs."""
    tally = play_without_findings(seeds)

    if len(seeds) >= ENOUGH:
        assert [event for event in EVENTS if not tally.coverage[event]] == []


def play_without_findings(seeds: range) -> Tally:
    """Play these histories; fail with a report of the first one with a finding."""
    tally = play_seeds(seeds)
    if tally.failures:
        failed = [seed for seed, _ in tally.failures]
        seed, finding = tally.failures[0]
        report = f"seeds {failed}\n\n{finding}\n\n{failure_report(seed)}"
        pytest.fail(report, pytrace=False)
    assert tally.histories == len(seeds)
    return tally
