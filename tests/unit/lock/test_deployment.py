"""The check of all nodes, and the start of a new deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.errors import RedlockError
from celery_redlock.members.deployment import NodesReport, initialize
from celery_redlock.wire.quorum import Vote, VoteKind
from celery_redlock.wire.url import parse_node
from tests.unit.lock.support import Site, ballot_of, restart

if TYPE_CHECKING:
    from celery_redlock.locks.redlock import Redlock


def test_check_of_healthy_nodes_finds_nothing(site: Site) -> None:
    """All nodes vote, and the check leaves no lock behind."""
    report = site.redlock.check()

    assert report.problems == []
    assert report.has_quorum
    assert report.retry_after is None
    names = site.nodes.nodes[0].memory.redis.keys()
    assert sorted(names) == [b"redlock:meta"]


def test_check_begins_the_quarantine_of_new_nodes(site: Site) -> None:
    """A check at worker start begins the wait, so that it ends sooner."""
    restart(site.nodes, 0, 1, 2)

    report = site.redlock.check()

    assert not report.has_quorum
    assert report.retry_after == pytest.approx(62.2)
    assert report.problems == [
        "node-1:6379/0 is in quarantine for 62.2 s",
        "node-2:6379/0 is in quarantine for 62.2 s",
        "node-3:6379/0 is in quarantine for 62.2 s",
        "node-4:6379/0 is in quarantine for 62.2 s",
        "node-5:6379/0 is in quarantine for 62.2 s",
    ]


# -- the report ------------------------------------------------------------------------


GRANTED, SILENT = Vote(VoteKind.GRANTED, 1), Vote(VoteKind.SILENT, reason="is gone")
UNUSED_PORT = "redis://:s3cr3t@127.0.0.1:1/0"  # port 1 is reserved


def report(*votes: Vote) -> NodesReport:
    """Return a report of these votes."""
    return NodesReport(ballot_of(votes))


def quarantined(seconds: float) -> Vote:
    """Return the vote of a node that is in quarantine for so long."""
    return Vote(VoteKind.QUARANTINED, round(seconds * 1000))


def test_report_has_a_problem_for_each_node_that_does_not_vote() -> None:
    """There is one clause per node, in node order."""
    unsynced = Vote(VoteKind.UNSYNCED, value="run")

    found = report(GRANTED, SILENT, quarantined(3), unsynced)

    assert found.problems == [
        "node-1 is gone",
        "node-2 is in quarantine for 3.0 s",
        "node-3 is not confirmed by other nodes yet",
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
def test_report_tells_whether_locks_can_be_granted(
    votes: list[Vote], *, has_quorum: bool
) -> None:
    """A majority of the nodes must vote."""
    assert report(*votes).has_quorum is has_quorum


@pytest.mark.parametrize(
    ("votes", "retry_after"),
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
    votes: list[Vote], retry_after: float | None
) -> None:
    """None where there is nothing to wait for, or waiting does not help."""
    assert report(*votes).retry_after == retry_after


def test_initialize_changes_nothing_while_a_node_is_down(redlock: Redlock) -> None:
    """Initialize reads every node before it changes one, and hides the password."""
    address = parse_node(UNUSED_PORT)

    with pytest.raises(RedlockError) as caught:
        initialize(redlock.guard, [address], 1.0)

    assert str(caught.value).startswith("Node 127.0.0.1:1/0 refused the connection.")
    assert "nothing was changed" in str(caught.value)
    assert "s3cr3t" not in f"{caught.value!r} {caught.value.__cause__!r}"
