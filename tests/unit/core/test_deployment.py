"""What people are told of all nodes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.address import parse_node
from celery_redlock.core.ballot import Ballot, Vote, VoteKind
from celery_redlock.core.deployment import NodesReport, count_locks, initialize
from celery_redlock.errors import RedlockError

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock

GRANTED, SILENT = Vote(VoteKind.GRANTED, 1), Vote(VoteKind.SILENT, reason="is gone")
NOBODY_LISTENS = "redis://:s3cr3t@127.0.0.1:1/0"  # port 1 is reserved


def report(*votes: Vote) -> NodesReport:
    """Return a report of these votes."""
    ballot = Ballot([f"node-{index}" for index in range(len(votes))])
    for index, vote in enumerate(votes):
        ballot.cast(index, vote)
    return NodesReport(ballot)


def quarantined(seconds: float) -> Vote:
    """Return the vote of a node that waits for so long."""
    return Vote(VoteKind.QUARANTINED, round(seconds * 1000))


def test_report_has_a_problem_for_each_node_that_does_not_vote() -> None:
    """A clause each, in node order."""
    unsynced = Vote(VoteKind.UNSYNCED, value="run")

    found = report(GRANTED, SILENT, quarantined(3), unsynced)

    assert found.problems == [
        "node-1 is gone",
        "node-2 is in quarantine for 3.0 s",
        "node-3 has not recovered its fences yet",
    ]
    assert report(GRANTED).problems == []


@pytest.mark.parametrize(
    ("votes", "has_quorum"),
    [
        ([GRANTED], True),
        ([GRANTED, SILENT], False),
        ([GRANTED, GRANTED, SILENT], True),
        ([SILENT], False),
    ],
)
def test_report_tells_whether_locks_can_be_had(
    votes: list[Vote], *, has_quorum: bool
) -> None:
    """A majority that grants."""
    assert report(*votes).has_quorum is has_quorum


@pytest.mark.parametrize(
    ("votes", "waits"),
    [
        ([GRANTED, GRANTED, quarantined(9)], None),
        ([GRANTED, quarantined(2), quarantined(9)], 2.0),
        ([quarantined(9), quarantined(2), quarantined(5)], 5.0),
        ([GRANTED, SILENT, quarantined(3)], 3.0),
        ([SILENT, SILENT, quarantined(3)], None),
        ([SILENT, SILENT, SILENT], None),
    ],
)
def test_report_tells_how_long_until_a_quorum_votes(
    votes: list[Vote], waits: float | None
) -> None:
    """None where there is nothing to wait for, or waiting would not help."""
    assert report(*votes).waits == waits


def test_node_that_is_down_cannot_be_looked_at() -> None:
    """An error of ours, with the name and without the password."""
    address = parse_node(NOBODY_LISTENS)

    with pytest.raises(RedlockError) as caught:
        count_locks(address, "redlock", timeout=1.0)

    assert str(caught.value).startswith("Node 127.0.0.1:1/0 could not be looked at:")
    assert "Nothing was changed" in str(caught.value)
    assert "s3cr3t" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_initialize_changes_nothing_while_a_node_is_down(redlock: Redlock) -> None:
    """All nodes or none: it looks at each before it touches one."""
    address = parse_node(NOBODY_LISTENS)

    with pytest.raises(RedlockError, match="could not be looked at"):
        initialize(redlock.guard, [address], 1.0)
