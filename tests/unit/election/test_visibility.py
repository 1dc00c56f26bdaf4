"""The leader and the standbys are visible in the log and on the nodes."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.lease import Holder
from celery_redlock.core.records.standbys import leadership_of
from tests.unit.election.support import KEY, TTL, Candidate, run

if TYPE_CHECKING:
    from celery_redlock.testing import FakeNodes


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Capture all log lines about elections."""
    caplog.set_level(logging.INFO, "celery_redlock.election")


# -- the log --------------------------------------------------------------------------


def test_outage_is_logged_once_by_each_candidate(
    candidates: list[Candidate], caplog: pytest.LogCaptureFixture
) -> None:
    """Each logs that no leader can be elected; the leader logs its lost term, too."""
    run(1, *candidates)
    caplog.clear()
    candidates[0].nodes.freeze(0, 1, 2)

    run(120, *candidates)

    said = [r.message for r in caplog.records if r.levelno >= logging.WARNING]
    assert sum("could not be renewed" in line for line in said) == 1
    assert sum("is lost after" in line for line in said) == 1
    assert sum("can be elected" in line for line in said) == 3
    assert len(said) == 5


def test_failed_renewal_is_logged_once_in_each_term(
    candidates: list[Candidate], caplog: pytest.LogCaptureFixture
) -> None:
    """A leader that resigned after a failed renewal logs the next failure, too."""
    first, *_ = candidates
    for _ in range(2):
        first.campaign()
        first.nodes.freeze()
        for _ in range(2):
            first.clock.sleep(TTL / 3)
            first.campaign()
        first.nodes.thaw()
        first.resign()

    said = caplog.messages
    assert sum("could not be renewed" in line for line in said) == 2
    assert sum("is renewed again" in line for line in said) == 0


def test_standby_logs_each_leader_once(
    candidates: list[Candidate], caplog: pytest.LogCaptureFixture
) -> None:
    """A standby logs the leader when the leader changes."""
    first, second, third = candidates
    first.campaign()
    run(60, second)
    first.resign()
    third.campaign()
    run(60, second, third)

    lines = caplog.messages
    assert sum("Standing by" in line for line in lines) == 2
    assert all("a candidate on " in line for line in lines if "Standing" in line)


# -- the list on the nodes ------------------------------------------------------------


def test_leader_and_standbys_are_listed(candidates: list[Candidate]) -> None:
    """The nodes name the leader and the standbys, the longest standby first."""
    first, second, third = candidates
    began = first.clock.wall()
    first.campaign()
    first.clock.sleep(10)
    run(1, first, second, third)
    onlooker = first.nodes.another_client().redlock()

    seen = leadership_of(onlooker, KEY)

    assert first.term is not None
    assert seen.leader is not None
    assert seen.leader.fence == first.term.number
    assert seen.leader.started == pytest.approx(began, abs=0.01)
    assert (seen.leader.task, seen.leader.pid) == ("a candidate", os.getpid())
    assert (seen.votes, 0 < seen.ttl_left <= TTL) == (5, True)
    assert [type(standby) for standby in seen.standbys] == [Holder, Holder]
    assert [standby.task for standby in seen.standbys] == ["a candidate"] * 2


def test_former_standby_is_not_listed(candidates: list[Candidate]) -> None:
    """It was elected, or it resigned, or it was killed."""
    first, second, third = candidates
    run(1, first, second, third)
    onlooker = first.nodes.another_client().redlock()
    leader = next(one for one in candidates if one.leads)
    standby, killed = (one for one in candidates if one is not leader)

    leader.resign()
    run(1, standby)
    assert standby.leads
    assert len(leadership_of(onlooker, KEY).standbys) == 1
    run(TTL + 1, standby)

    assert leadership_of(onlooker, KEY).standbys == ()
    assert not killed.leads


def test_election_without_candidates_lists_none(nodes: FakeNodes) -> None:
    """The ballot tells this apart from too few answers."""
    redlock = nodes.redlock()

    seen = leadership_of(redlock, KEY)
    assert (seen.leader, seen.votes, seen.ttl_left, seen.standbys) == (None, 0, 0.0, ())
    assert seen.ballot.answered == 5

    nodes.freeze(0, 1, 2)
    assert leadership_of(redlock, KEY).ballot.answered == 2
