"""One candidate leads, and another one replaces it when its term ends."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest

import celery_redlock
from celery_redlock.election import Elector, Term
from celery_redlock.errors import ConfigurationError
from celery_redlock.locks.lease import Holder
from celery_redlock.records.standbys import leadership_of
from celery_redlock.scripts import RELEASE
from celery_redlock.testing import FakeClock, FakeNodes, force_release
from tests.conftest import with_long
from tests.interruptions import Interrupted, counts_places, interruptions
from tests.unit.election.support import KEY, TTL, Candidate, run


def test_first_candidate_is_elected(candidates: list[Candidate]) -> None:
    """The first to campaign leads at once. Later ones stand by, without callbacks."""
    first, *others = candidates

    term = first.campaign()

    assert term is first.term
    assert term is not None
    assert term.is_valid()
    assert TTL - 1 < term.remaining() <= TTL
    assert first.events == [("elected", term.number)]
    assert first.pause == TTL / 3  # in time to renew
    assert [other.campaign() for other in others] == [None, None]
    assert [other.events for other in others] == [[], []]
    assert [other.pause for other in others] == [0.5, 0.5]


def test_leader_goes_on_leading(candidates: list[Candidate]) -> None:
    """It keeps one term for as long as it renews it."""
    first, *_ = candidates
    term = first.campaign()

    run(120, *candidates)

    assert first.term is term
    assert first.leads
    assert [candidate.events for candidate in candidates[1:]] == [[], []]


def test_busy_leader_does_not_renew_too_often(candidates: list[Candidate]) -> None:
    """A loop that campaigns a thousand times a second costs the nodes little."""
    first, *_ = candidates
    first.campaign()
    before = len(first.nodes.asked)

    for _ in range(15_000):
        first.campaign()
        first.clock.sleep(0.001)

    assert len(first.nodes.asked) - before <= 6
    assert first.leads


def test_term_has_a_number_that_grows(candidates: list[Candidate]) -> None:
    """Storage can refuse an earlier leader by the number."""
    numbers = []
    for candidate in candidates * 2:
        term = candidate.campaign()
        assert term is not None
        assert term.since == pytest.approx(candidate.clock.wall())
        numbers.append(term.number)
        candidate.resign()

    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("key", ["", "a\nb", None, 7, ["a", "b"], "a##2"])
def test_election_refuses_what_cannot_be_its_key(nodes: FakeNodes, key: Any) -> None:
    """When it is made, and not in the thread that campaigns."""
    with pytest.raises(ConfigurationError, match="cannot be used"):
        Elector(nodes.redlock(), key)


def test_elections_of_other_keys_are_independent(nodes: FakeNodes) -> None:
    """Each key has its own leader."""
    first = Candidate(nodes)
    other = Elector(nodes.another_client().redlock(), "another", ttl=TTL)

    assert first.campaign()
    assert other.campaign()


# -- the end of a term -----------------------------------------------------------


def test_resigned_leader_is_replaced_soon(candidates: list[Candidate]) -> None:
    """Within half a second: the pause between two attempts of a standby."""
    first, second, third = candidates
    term = first.campaign()
    run(1, second, third)

    first.resign()
    run(0.5, second, third)

    assert term is not None
    assert not term.is_valid()
    assert first.events[-1] == ("resigned", term.number)
    assert [second.leads, third.leads].count(True) == 1


def test_resigning_twice_is_harmless(candidates: list[Candidate]) -> None:
    """A standby can resign, too. After that a candidate can campaign again."""
    first, second, _ = candidates
    first.campaign()

    for _ in range(2):
        first.resign()
        second.resign()

    assert [what for what, _ in first.events] == ["elected", "resigned"]
    assert second.events == []
    assert second.campaign()
    second.resign()
    assert first.campaign()


def test_killed_leader_is_replaced_within_a_ttl(candidates: list[Candidate]) -> None:
    """The time counts from the kill, at any moment between two renewals."""
    for _ in range(10):
        run(1.1, *candidates)
        dead, *alive = sorted(candidates, key=lambda one: not one.leads)
        assert dead.leads

        run(TTL + 0.05, *alive)

        assert [one for one in candidates if one.leads] != [dead]
        assert any(one.leads for one in alive)
        dead.campaign()


def test_frozen_leader_knows_that_its_term_ended(candidates: list[Candidate]) -> None:
    """Its own clock says so, before any message reaches it."""
    first, second, _ = candidates
    term = first.campaign()
    assert term is not None

    run(TTL + 0.05, second)

    assert second.leads
    assert not term.is_valid()
    assert first.campaign() is None
    assert first.events == [("elected", term.number), ("lost", term.number)]
    assert second.leads


def test_frozen_leader_leads_again_in_a_new_term(candidates: list[Candidate]) -> None:
    """No other candidate was elected in the meantime."""
    first, *_ = candidates
    old = first.campaign()
    first.clock.sleep(TTL + 1)

    new = first.campaign()

    assert old is not None
    assert new is not None
    assert new.number > old.number
    assert [what for what, _ in first.events] == ["elected", "lost", "elected"]


def test_leader_that_lost_its_lock_stops_at_once(candidates: list[Candidate]) -> None:
    """An operator can release the lock; the leader notices at its next renewal."""
    first, second, _ = candidates
    term = first.campaign()
    assert term is not None
    second._redlock.release_base(KEY, term.lease.token.partition(".")[0])  # noqa: SLF001
    assert second.campaign()

    first.clock.sleep(TTL / 3)

    assert first.campaign() is None
    assert not term.is_valid()
    assert first.events[-1] == ("lost", term.number)


def test_leader_with_an_old_view_names_who_leads(
    candidates: list[Candidate], caplog: pytest.LogCaptureFixture
) -> None:
    """The renewal is repeated with the view that the nodes have told."""
    first, second, _ = candidates
    term = first.campaign()
    assert term is not None
    first.nodes.nodes[0].memory.promote()
    second._redlock.release_base(KEY, term.lease.token.partition(".")[0])  # noqa: SLF001
    assert second.campaign()
    first.clock.sleep(TTL / 3)
    caplog.clear()

    assert first.campaign() is None

    lost, *_ = caplog.messages
    assert re.fullmatch(r"The leadership of .* is lost after 5 s: .* leads\.", lost)
    assert first.events[-1] == ("lost", term.number)


def test_leader_says_which_operator_released_its_lock(
    candidates: list[Candidate], caplog: pytest.LogCaptureFixture
) -> None:
    """The operator did it for a reason, and may watch the log."""
    first, *_ = candidates
    first.campaign()
    force_release(first._redlock, KEY)  # noqa: SLF001
    first.clock.sleep(TTL / 3)
    caplog.clear()

    first.campaign()

    assert "5 s: its lock was released by an operator, tester" in caplog.messages[0]


def test_leader_that_resigns_too_late_has_lost_its_term(
    candidates: list[Candidate], caplog: pytest.LogCaptureFixture
) -> None:
    """It was frozen until then, and another candidate leads."""
    first, second, _ = candidates
    term = first.campaign()
    assert term is not None
    run(TTL + 1, second)
    caplog.clear()

    first.resign()

    assert first.events == [("elected", term.number), ("lost", term.number)]
    assert [line for line in caplog.messages if "Resigned" in line] == []
    assert second.leads


def test_standby_looks_seldom_at_a_lock_that_never_ends(nodes: FakeNodes) -> None:
    """Another program made the key, without a ttl."""
    candidate = Candidate(nodes)
    for node in nodes.nodes:
        node.memory.redis.set(candidate._redlock.keys.lock(KEY).encode(), b"theirs")  # noqa: SLF001

    assert candidate.campaign() is None

    assert candidate.pause == 0.5


# -- nodes that are away -------------------------------------------------------------


def test_minority_of_nodes_away_changes_nothing(candidates: list[Candidate]) -> None:
    """The leader keeps its term, and is replaced when it resigns."""
    first, second, third = candidates
    term = first.campaign()
    first.nodes.freeze(0)
    first.nodes.nodes[1].kill()

    run(100, *candidates)
    assert first.term is term
    first.resign()
    run(2, second, third)

    assert second.leads or third.leads


def test_majority_of_nodes_away_ends_the_term(candidates: list[Candidate]) -> None:
    """No candidate leads until the nodes are back."""
    nodes = candidates[0].nodes
    run(1, *candidates)
    nodes.freeze(0, 1, 2)

    run(TTL, *candidates)
    assert not any(candidate.leads for candidate in candidates)

    nodes.thaw()
    run(TTL + 1, *candidates)
    assert [candidate.leads for candidate in candidates].count(True) == 1


def test_leader_that_is_cut_off_is_replaced(candidates: list[Candidate]) -> None:
    """The others reach a majority. The old leader never leads beside the new one."""
    first, second, third = candidates
    first.campaign()
    first.nodes.partition(0, 1, 2)

    run(TTL + 0.1, first, second, third)

    assert not first.leads
    assert second.leads or third.leads
    first.nodes.heal()
    run(60, first, second, third)
    assert not first.leads


def test_renewal_that_fails_once_ends_no_term(candidates: list[Candidate]) -> None:
    """The leader tries again soon, and the term goes on."""
    first, *_ = candidates
    term = first.campaign()
    first.clock.sleep(TTL / 3)
    first.nodes.freeze()
    assert first.campaign() is term
    assert first.pause < TTL / 3

    first.nodes.thaw()
    first.clock.sleep(first.pause)

    assert first.campaign() is term
    assert first.pause == TTL / 3
    assert first.events == [("elected", first.term.number if first.term else 0)]


# -- callbacks, interrupts, forks ----------------------------------------------------


def test_callback_that_fails_ends_no_term(
    nodes: FakeNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged."""

    def fail(_: Term) -> None:
        raise ValueError("theirs")

    redlock = nodes.redlock()
    elector = Elector(redlock, KEY, on_elected=fail, on_resigned=fail)

    assert elector.campaign()
    elector.resign()

    assert caplog.text.count("ValueError: theirs") == 2


PACKAGE = Path(celery_redlock.__file__).parent


@counts_places
@pytest.mark.parametrize("where", with_long(["election.py", "locks"], "locks"))
def test_campaign_that_is_interrupted_anywhere_leaves_no_lock(
    nodes: FakeNodes, clock: FakeClock, where: str
) -> None:
    """SIGTERM may come between the grant and the line that stores the term."""
    nodes.redlock()
    place = 0
    for interruption in interruptions(str(PACKAGE / where)):
        place = interruption.at
        first, second = (Candidate(nodes.another_client()) for _ in range(2))
        with interruption:
            first.campaign()

        first.resign()

        assert second.campaign(), f"a lock was left at place {place}"
        second.resign()
        clock.sleep(1)
    assert place > 5  # six with CPython 3.13, and more before


@counts_places
@pytest.mark.parametrize("where", with_long(["election.py", "locks"], "locks"))
def test_candidate_that_was_interrupted_anywhere_can_be_elected(
    nodes: FakeNodes, where: str
) -> None:
    """It does not take its own lock, which has no term, for that of a leader."""
    nodes.redlock()
    place = 0
    for interruption in interruptions(str(PACKAGE / where)):
        place = interruption.at
        candidate = Candidate(nodes.another_client())
        with interruption:
            candidate.campaign()

        assert candidate.campaign(), f"it refused itself at place {place}"
        candidate.resign()
    assert place > 5  # six with CPython 3.13, and more before


def test_late_release_of_an_interrupted_attempt_ends_no_term(
    candidates: list[Candidate],
) -> None:
    """A node gets it when it is back, and once more a second later."""
    first, second, _ = candidates

    def interrupt() -> None:
        raise Interrupted

    first.nodes.latency(0.02)
    first.clock.at(0.01, interrupt)
    with pytest.raises(Interrupted):
        first.campaign()
    first.nodes.latency(0.0)
    first.nodes.partition()
    assert first.campaign() is None  # its release is on the way
    for connection in first.nodes._connections:  # noqa: SLF001
        connection.break_off("was reset")
    first.nodes.heal()

    assert first.campaign()
    first.clock.advance(1.0)
    first.nodes.drain()

    assert second.campaign() is None
    assert first.leads


@counts_places
@pytest.mark.parametrize("resigns", [False, True])
def test_release_of_an_interrupted_attempt_can_end_no_later_term(
    nodes: FakeNodes, resigns: bool
) -> None:
    """A node that was away gets it late: perhaps after the grant of the next term."""
    nodes.redlock()
    releases = 0
    for interruption in interruptions(str(PACKAGE / "election.py")):
        candidate = Candidate(nodes.another_client())
        with interruption:
            candidate.campaign()
        if resigns:
            candidate.resign()

        term = candidate.campaign()

        assert term is not None
        asked = [one for one in candidate.nodes.asked if one.script is RELEASE]
        released = [one.call[2][0] for one in asked]
        assert not [one for one in released if term.lease.token.startswith(one)]
        releases += len(released)
        candidate.resign()
    assert releases > 2


@counts_places
@pytest.mark.parametrize("where", with_long(["election.py", "locks"], "locks"))
def test_resignation_that_is_interrupted_anywhere_can_be_repeated(
    nodes: FakeNodes, clock: FakeClock, where: str
) -> None:
    """A second SIGTERM may come while the lock is released."""
    nodes.redlock()
    place = 0
    for interruption in interruptions(str(PACKAGE / where)):
        place = interruption.at
        first, second = (Candidate(nodes.another_client()) for _ in range(2))
        assert first.campaign()
        with interruption:
            first.resign()

        first.resign()

        assert second.campaign(), f"a lock was left at place {place}"
        second.resign()
        clock.sleep(1)
    assert place > 2


def test_forked_child_does_not_lead(candidates: list[Candidate]) -> None:
    """The term is its parent's. The child neither uses it nor ends it."""
    first, second, _ = candidates
    term = first.campaign()
    assert term is not None
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        first.resign()
        first.campaign()
        said = f"{term.is_valid()} {first.leads}"
        os.write(write, said.encode())
        os._exit(0)
    os.waitpid(pid, 0)

    assert os.read(read, 100) == b"False False"
    assert term.is_valid()
    assert second.campaign() is None
    os.close(read)
    os.close(write)


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
    assert (seen.lock.votes, 0 < seen.lock.ttl_left <= TTL) == (5, True)
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
    assert (seen.leader, seen.standbys) == (None, ())
    assert (seen.lock.votes, seen.lock.ttl_left) == (0, 0.0)
    assert seen.lock.ballot.answered == 5

    nodes.freeze(0, 1, 2)
    assert leadership_of(redlock, KEY).lock.ballot.answered == 2
