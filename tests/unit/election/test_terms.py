"""One leads, knows until when, and another one leads when it does not any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.election import Elector
from celery_redlock.errors import ConfigurationError
from tests.unit.election.support import KEY, TTL, Candidate, run

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock, FakeNodes


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
