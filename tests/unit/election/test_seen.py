"""Who leads and who stands by can be seen, and is in the log."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.lease import Holder
from celery_redlock.leadership import leadership_of
from tests.unit.election.support import KEY, TTL, Candidate, run

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock, FakeNodes


# -- what the log says ---------------------------------------------------------------


def test_outage_is_logged_once_by_everybody(
    candidates: list[Candidate],
    clock: FakeClock,
    nodes: FakeNodes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line each that says that nobody can lead, and why."""
    caplog.set_level(logging.INFO, "celery_redlock.election")
    run(clock, *candidates, seconds=1)
    caplog.clear()
    nodes.freeze(0, 1, 2)

    run(clock, *candidates, seconds=120)

    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert sum("could not be renewed" in line for line in said) == 1
    assert sum("is lost after" in line for line in said) == 1
    assert sum("Nobody can be elected" in line for line in said) == 3
    assert len(said) == 5


def test_standby_logs_each_leader_once(
    candidates: list[Candidate], clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Who leads is said when it changes."""
    caplog.set_level(logging.INFO, "celery_redlock.election")
    first, second, third = candidates
    first.campaign()
    run(clock, second, seconds=60)
    first.resign()
    third.campaign()
    run(clock, second, third, seconds=60)

    lines = [r.getMessage() for r in caplog.records]
    assert sum("Standing by" in line for line in lines) == 2
    assert all("a candidate on " in line for line in lines if "Standing" in line)


# -- being seen ----------------------------------------------------------------------


def test_everybody_can_be_seen(
    candidates: list[Candidate], clock: FakeClock, nodes: FakeNodes
) -> None:
    """Who leads since when, and who stands by since when, the longest first."""
    first, second, third = candidates
    began = clock.wall_us() / 1e6
    first.campaign()
    clock.sleep(10)
    run(clock, first, second, third, seconds=1)
    onlooker = nodes.another_client().redlock()

    seen = leadership_of(onlooker, KEY)

    assert first.term is not None
    assert seen.leader is not None
    assert seen.leader.fence == first.term.number
    assert seen.leader.started == pytest.approx(began, abs=0.01)
    assert (seen.leader.task, seen.leader.pid) == ("a candidate", os.getpid())
    assert (seen.votes, 0 < seen.ttl_left <= TTL) == (5, True)
    assert [type(standby) for standby in seen.standbys] == [Holder, Holder]
    assert [standby.task for standby in seen.standbys] == ["a candidate"] * 2


def test_leader_is_not_listed_as_standing_by(
    candidates: list[Candidate], clock: FakeClock, nodes: FakeNodes
) -> None:
    """Neither one that was elected, nor one that resigned, nor one that was killed."""
    first, second, third = candidates
    run(clock, first, second, third, seconds=1)
    onlooker = nodes.another_client().redlock()
    leader = next(one for one in candidates if one.leads())
    standby, killed = (one for one in candidates if one is not leader)

    leader.resign()
    run(clock, standby, seconds=1)
    assert standby.leads()
    assert len(leadership_of(onlooker, KEY).standbys) == 1
    run(clock, standby, seconds=TTL + 1)

    assert leadership_of(onlooker, KEY).standbys == ()
    assert not killed.leads()


def test_nobody_is_seen_where_nobody_is(nodes: FakeNodes) -> None:
    """An empty stage, and nodes that cannot tell."""
    redlock = nodes.redlock()

    seen = leadership_of(redlock, KEY)
    assert (seen.leader, seen.votes, seen.ttl_left, seen.standbys) == (None, 0, 0.0, ())
    assert seen.ballot.answered == 5

    nodes.freeze(0, 1, 2)
    assert leadership_of(redlock, KEY).ballot.answered == 2
