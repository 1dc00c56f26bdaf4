"""One leads, knows until when, and another one leads when it does not any more."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock import election
from celery_redlock.core.lease import Holder
from celery_redlock.election import Elector, Term
from celery_redlock.errors import ConfigurationError
from celery_redlock.leadership import leadership_of
from celery_redlock.testing import FakeClock, FakeNodes

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

TTL = 15.0
KEY = "reindexer"


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that stands still."""
    return FakeClock()


@pytest.fixture
def nodes(clock: FakeClock) -> FakeNodes:
    """Give five nodes, as the first candidate sees them."""
    return FakeNodes(5, clock=clock)


class Candidate(Elector):
    """A candidate with a way of its own to the nodes, which writes down its terms."""

    def __init__(self, nodes: FakeNodes, **options: Any) -> None:
        self.nodes = nodes
        self.told: list[tuple[str, int]] = []
        options = {"name": "a candidate", **options}
        super().__init__(
            nodes.redlock(max_ttl=60.0),
            KEY,
            on_elected=lambda term: self.told.append(("elected", term.number)),
            on_resigned=lambda term: self.told.append(
                ("lost" if term.was_lost else "resigned", term.number)
            ),
            **{"ttl": TTL, **options},
        )

    def leads(self) -> bool:
        """Tell whether it may do what only a leader may, at this moment."""
        return self.term is not None and self.term.is_valid()


@pytest.fixture
def candidates(nodes: FakeNodes) -> list[Candidate]:
    """Give three candidates of which none has campaigned."""
    return [
        Candidate(nodes),
        Candidate(nodes.another_client()),
        Candidate(nodes.another_client()),
    ]


def run(
    clock: FakeClock,
    *candidates: Candidate,
    seconds: float,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Let the candidates campaign whenever they want to, for so long."""
    due = {id(candidate): clock.monotonic() for candidate in candidates}
    end = clock.monotonic() + seconds
    while min(due.values()) <= end:
        candidate = min(candidates, key=lambda candidate: due[id(candidate)])
        left = due[id(candidate)] - clock.monotonic()
        if left > 0:
            clock.sleep(left)
        candidate.campaign()
        due[id(candidate)] = clock.monotonic() + candidate.pause
        assert sum(one.leads() for one in candidates) <= 1
        watch()
    clock.sleep(max(0.0, end - clock.monotonic()))


# -- being elected ---------------------------------------------------------------


def test_first_candidate_is_elected(candidates: list[Candidate]) -> None:
    """With nobody there, the first to campaign leads at once."""
    first, *_ = candidates

    term = first.campaign()

    assert term is first.term
    assert term is not None
    assert term.is_valid()
    assert TTL - 1 < term.remaining() <= TTL
    assert first.told == [("elected", term.number)]


def test_others_stand_by(candidates: list[Candidate]) -> None:
    """Whoever comes later has no term, and is not told anything."""
    first, *others = candidates
    first.campaign()

    assert [other.campaign() for other in others] == [None, None]
    assert [other.told for other in others] == [[], []]


def test_leader_goes_on_leading(candidates: list[Candidate], clock: FakeClock) -> None:
    """One term lasts for as long as it is renewed: it is the same all along."""
    first, *_ = candidates
    term = first.campaign()

    run(clock, *candidates, seconds=600)

    assert first.term is term
    assert first.leads()
    assert [candidate.told for candidate in candidates[1:]] == [[], []]


def test_leader_comes_back_three_times_per_ttl(
    candidates: list[Candidate],
) -> None:
    """It wants to be called in time to renew, and others often enough to see it end."""
    first, second, _ = candidates

    first.campaign()
    second.campaign()

    assert first.pause == TTL / 3
    assert second.pause == 0.5


def test_busy_leader_renews_no_more_often_than_it_must(
    candidates: list[Candidate], clock: FakeClock
) -> None:
    """A loop that campaigns a thousand times a second costs the nodes little."""
    first, *_ = candidates
    first.campaign()
    before = len(first.nodes.asked)

    for _ in range(15_000):
        first.campaign()
        clock.sleep(0.001)

    assert len(first.nodes.asked) - before <= 6
    assert first.leads()


def test_term_has_a_number_that_grows(
    candidates: list[Candidate], clock: FakeClock
) -> None:
    """Storage can refuse a leader of the past by it."""
    numbers = []
    for candidate in candidates * 2:
        term = candidate.campaign()
        assert term is not None
        assert term.since == pytest.approx(clock.wall_us() / 1e6)
        numbers.append(term.number)
        candidate.resign()

    assert numbers == sorted(set(numbers))


def test_elections_of_other_things_are_their_own(nodes: FakeNodes) -> None:
    """Each key has a leader."""
    first = Candidate(nodes)
    other = Elector(nodes.another_client().redlock(), "another", ttl=TTL)

    assert first.campaign()
    assert other.campaign()


def test_ttl_that_cannot_be_used_is_refused(nodes: FakeNodes) -> None:
    """A term cannot outlast what a node may have forgotten."""
    with pytest.raises(ConfigurationError, match="above max_ttl"):
        Candidate(nodes, ttl=61.0)


# -- ending ------------------------------------------------------------------------


def test_resigning_lets_another_lead_at_once(
    candidates: list[Candidate], clock: FakeClock
) -> None:
    """Within one look of a standby, which is half a second."""
    first, second, third = candidates
    term = first.campaign()
    run(clock, second, third, seconds=1)

    first.resign()
    run(clock, second, third, seconds=0.5)

    assert term is not None
    assert not term.is_valid()
    assert first.told[-1] == ("resigned", term.number)
    assert [second.leads(), third.leads()].count(True) == 1


def test_resigning_twice_is_harmless(candidates: list[Candidate]) -> None:
    """As is resigning without ever having led; and one may campaign again."""
    first, second, _ = candidates
    first.campaign()

    for _ in range(2):
        first.resign()
        second.resign()

    assert [what for what, _ in first.told] == ["elected", "resigned"]
    assert second.told == []
    assert second.campaign()
    second.resign()
    assert first.campaign()


def test_killed_leader_is_replaced_within_a_ttl(
    candidates: list[Candidate], clock: FakeClock
) -> None:
    """Counted from the kill, wherever between two renewals it falls."""
    first, second, third = candidates
    for _ in range(10):
        run(clock, first, second, third, seconds=1.1)
        dead, *alive = sorted(candidates, key=lambda one: not one.leads())
        assert dead.leads()

        run(clock, *alive, seconds=TTL + 0.05)

        assert any(one.leads() for one in alive)
        assert not dead.leads()
        dead.campaign()


def test_frozen_leader_knows_that_its_term_has_ended(
    candidates: list[Candidate], clock: FakeClock
) -> None:
    """It asks its own clock: no message has to reach it first."""
    first, second, _ = candidates
    term = first.campaign()
    assert term is not None

    run(clock, second, seconds=TTL + 0.05)

    assert second.leads()
    assert not term.is_valid()
    assert first.campaign() is None
    assert first.told == [("elected", term.number), ("lost", term.number)]
    assert second.leads()


def test_frozen_leader_may_lead_again_where_nobody_else_does(
    candidates: list[Candidate], clock: FakeClock
) -> None:
    """In a new term: what it did in the old one has ended."""
    first, *_ = candidates
    old = first.campaign()
    clock.sleep(TTL + 1)

    new = first.campaign()

    assert old is not None
    assert new is not None
    assert new.number > old.number
    assert [what for what, _ in first.told] == ["elected", "lost", "elected"]


def test_leader_whose_lock_was_given_to_another_stops_at_once(
    candidates: list[Candidate], clock: FakeClock
) -> None:
    """An operator can release the lock; the leader notices with its next renewal."""
    first, second, _ = candidates
    term = first.campaign()
    assert term is not None
    second._redlock.release_base(KEY, term.lease.token.partition(".")[0])  # noqa: SLF001
    assert second.campaign()

    clock.sleep(TTL / 3)

    assert first.campaign() is None
    assert not term.is_valid()
    assert first.told[-1] == ("lost", term.number)


# -- nodes that are away -------------------------------------------------------------


def test_minority_of_nodes_away_changes_nothing(
    candidates: list[Candidate], clock: FakeClock, nodes: FakeNodes
) -> None:
    """The same leader, the same term; and a successor when it goes."""
    first, second, third = candidates
    term = first.campaign()
    nodes.freeze(0)
    nodes.nodes[1].kill()

    run(clock, *candidates, seconds=100)
    assert first.term is term
    first.resign()
    run(clock, second, third, seconds=2)

    assert second.leads() or third.leads()


def test_majority_of_nodes_away_ends_the_term(
    candidates: list[Candidate], clock: FakeClock, nodes: FakeNodes
) -> None:
    """Nobody leads then; the leader was to be trusted until its validity ended."""
    run(clock, *candidates, seconds=1)
    nodes.freeze(0, 1, 2)

    run(clock, *candidates, seconds=TTL)
    assert not any(candidate.leads() for candidate in candidates)

    nodes.thaw()
    run(clock, *candidates, seconds=TTL + 1)
    assert [candidate.leads() for candidate in candidates].count(True) == 1


def test_leader_that_is_cut_off_is_replaced(
    candidates: list[Candidate], clock: FakeClock, nodes: FakeNodes
) -> None:
    """From a majority, while the others reach it; and it never leads beside another."""
    first, second, third = candidates
    first.campaign()
    nodes.partition(0, 1, 2)

    run(clock, first, second, third, seconds=TTL + 0.1)

    assert not first.leads()
    assert second.leads() or third.leads()
    nodes.heal()
    run(clock, first, second, third, seconds=60)
    assert not first.leads()


def test_renewal_that_fails_once_ends_no_term(
    candidates: list[Candidate], clock: FakeClock, nodes: FakeNodes
) -> None:
    """It is tried again soon, and the term goes on as if nothing had been."""
    first, *_ = candidates
    term = first.campaign()
    clock.sleep(TTL / 3)
    nodes.freeze()
    assert first.campaign() is term
    assert first.pause < TTL / 3

    nodes.thaw()
    clock.sleep(first.pause)

    assert first.campaign() is term
    assert first.pause == TTL / 3
    assert first.told == [("elected", first.term.number if first.term else 0)]


def test_many_candidates_elect_one(
    candidates: list[Candidate], clock: FakeClock, nodes: FakeNodes
) -> None:
    """Nine of them, who never lead two at a time, and one of whom always leads."""
    more = [Candidate(nodes.another_client()) for _ in range(6)]

    run(clock, *candidates, *more, seconds=3)

    assert [one.leads() for one in candidates + more].count(True) == 1


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


# -- what may go wrong on the way ----------------------------------------------------


def test_callback_that_fails_ends_no_term(
    nodes: FakeNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in it is logged, and is its author's."""

    def fail(_: Term) -> None:
        raise ValueError("theirs")

    redlock = nodes.redlock()
    elector = Elector(redlock, KEY, on_elected=fail, on_resigned=fail)

    assert elector.campaign()
    elector.resign()

    assert caplog.text.count("ValueError: theirs") == 2


def strike_at(line: int) -> None:
    """Raise SystemExit before the so-many-th line of the elector, as SIGTERM does."""
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != election.__file__:
            return None
        left -= event == "line"
        if left == 0:
            raise SystemExit
        return trace

    sys.settrace(trace)


def test_campaign_that_is_interrupted_anywhere_leaves_no_lock(
    nodes: FakeNodes, clock: FakeClock
) -> None:
    """SIGTERM may strike between the grant and the first line that knows of it."""
    line, was_struck = 0, True
    while was_struck:
        line += 1
        first, second = (Candidate(nodes.another_client()) for _ in range(2))
        nodes.redlock()
        tracer = sys.gettrace()
        try:
            strike_at(line)
            first.campaign()
            was_struck = False
        except SystemExit:
            pass
        finally:
            sys.settrace(tracer)

        first.resign()

        assert second.campaign(), f"a lock was left at line {line}"
        second.resign()
        clock.sleep(1)
    assert line > 20


def test_forked_child_does_not_lead(candidates: list[Candidate]) -> None:
    """The term is its parent's, and the child neither uses nor ends it."""
    first, second, _ = candidates
    term = first.campaign()
    assert term is not None
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        first.resign()
        first.campaign()
        said = f"{term.is_valid()} {first.leads()}"
        os.write(write, said.encode())
        os._exit(0)
    os.waitpid(pid, 0)

    assert os.read(read, 100) == b"False False"
    assert term.is_valid()
    assert second.campaign() is None
    os.close(read)
    os.close(write)
