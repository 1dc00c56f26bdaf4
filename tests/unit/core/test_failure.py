"""Pauses between tries, and what is said when there are no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.ballot import Ballot, Vote, VoteKind
from celery_redlock.core.failure import delay_after, failure_of
from celery_redlock.errors import LockContended, LockHeld, QuorumUnreachable

if TYPE_CHECKING:
    from celery_redlock.errors import LockUnavailable

VOTES = {
    "G": Vote(VoteKind.GRANTED, 1),
    "A": Vote(VoteKind.TAKEN, 1000, "a.1\n1\ntask-a"),
    "B": Vote(VoteKind.TAKEN, 1000, "b.1\n1\ntask-b"),
    "Q": Vote(VoteKind.QUARANTINED, 3000),
    "S": Vote(VoteKind.SILENT, reason="is gone"),
    "M": Vote(VoteKind.REFUSED, value="another", reason="is set up differently"),
}


def failure(votes: str) -> LockUnavailable:
    """Return the error for these votes; a dot is a node that is still out."""
    ballot = Ballot([f"n{index}" for index in range(len(votes))])
    for index, letter in enumerate(votes):
        if letter != ".":
            ballot.cast(index, VOTES[letter])
    return failure_of("k", ballot, node_timeout=0.05)


@pytest.mark.parametrize(
    ("votes", "kind"),
    [
        ("AAB", LockHeld),
        ("AAS", LockHeld),
        ("AAAGG", LockHeld),
        ("ABG", LockContended),
        ("AB.", LockContended),
        ("AABBG", LockContended),
        ("AGS", LockContended),
        ("GG.", LockContended),
        ("ASS", QuorumUnreachable),
        ("GQQ", QuorumUnreachable),
        ("...", QuorumUnreachable),
        ("MMM", QuorumUnreachable),
    ],
)
def test_each_outcome_has_its_error(votes: str, kind: type[LockUnavailable]) -> None:
    """Held, contended and unreachable want three different things of the caller."""
    error = failure(votes)

    assert type(error) is kind
    assert error.key == "k"
    assert error.ballot is not None


MESSAGES = {
    "AAB": """
        The lock 'k' is held by task-a on an unknown host (pid 0), as 2 of 3 nodes
        say, for 1.0 s more unless renewed. Nothing is locked by you.
        """,
    "ABS": """
        The votes for 'k' were split: 0 of 3 nodes granted it (need 2), 2 named
        others; n2 is gone. Nothing is locked; try again.
        """,
    "QQS": """
        Only 0 of 3 nodes gave a vote on 'k' within 0.05 s (need 2): n0 is in
        quarantine for 3.0 s, n1 is in quarantine for 3.0 s, n2 is gone. Nothing is
        locked. They vote again by themselves in 3.0 s; on a brand-new deployment,
        `celery -A proj redlock init` ends the wait.
        """,
    "MMG": """
        Only 1 of 3 nodes gave a vote on 'k' within 0.05 s (need 2): n0 is set up
        differently, n1 is set up differently. Nothing is locked. Those nodes are set
        up for: another. Use the same settings on all clients, or move the nodes to
        yours with `celery -A proj redlock reconfigure`.
        """,
    "SS.": """
        Only 0 of 3 nodes gave a vote on 'k' within 0.05 s (need 2): n0 is gone, n1
        is gone, n2 had not answered. Nothing is locked. Run `celery -A proj redlock
        doctor`.
        """,
}


@pytest.mark.parametrize("votes", MESSAGES)
def test_message_is_fact_state_and_remedy(votes: str) -> None:
    """With numbers, and who said what."""
    assert str(failure(votes)) == " ".join(MESSAGES[votes].split())


def test_retry_after_is_told_where_it_is_known() -> None:
    """The end of the lock, or of the quarantine; None for silence."""
    held, quarantined, silent = failure("AAG"), failure("QQG"), failure("SSS")

    assert isinstance(held, LockHeld)
    assert isinstance(quarantined, QuorumUnreachable)
    assert isinstance(silent, QuorumUnreachable)
    assert held.retry_after == 1.0
    assert quarantined.retry_after == 3.0
    assert silent.retry_after is None


@pytest.mark.parametrize(
    ("votes", "tries", "ttl", "took", "longest"),
    [
        ("ABG", 1, 30.0, 0.0, 0.004),  # at least 2 ms, doubled
        ("ABG", 1, 30.0, 0.01, 0.04),  # two round trips, doubled
        ("ABG", 3, 30.0, 0.01, 0.16),
        ("ABG", 9, 30.0, 0.01, 0.25),
        ("ABG", 9, 1.0, 0.01, 0.1),  # a tenth of the ttl
        ("AAG", 9, 1.0, 0.01, 0.1),
        ("SSS", 9, 1.0, 0.01, 0.0625),  # nobody has it: soon
        ("GG.", 9, 30.0, 0.01, 0.0625),
    ],
)
def test_pause_is_random_below_a_ceiling_that_doubles(
    votes: str, tries: int, ttl: float, took: float, longest: float
) -> None:
    """Contenders that lost together must not try together."""
    error = failure(votes)

    pauses = [delay_after(error, tries, ttl=ttl, took=took) for _ in range(300)]

    assert longest / 4 <= min(pauses) < longest / 3
    assert longest * 0.9 < max(pauses) <= longest


def test_pause_after_very_many_tries_is_still_a_number() -> None:
    """Who waits for a day does not overflow."""
    assert delay_after(failure("ABG"), 2000, ttl=30.0, took=0.01) <= 0.25
