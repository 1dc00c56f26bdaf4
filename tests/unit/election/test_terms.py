"""One candidate leads, and another one replaces it when its term ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.election import Elector
from celery_redlock.errors import ConfigurationError
from tests.unit.election.support import KEY, TTL, Candidate, run

if TYPE_CHECKING:
    from celery_redlock.testing import FakeNodes


def test_first_candidate_is_elected(candidates: list[Candidate]) -> None:
    """The first to campaign leads at once."""
    first, *_ = candidates

    term = first.campaign()

    assert term is first.term
    assert term is not None
    assert term.is_valid()
    assert TTL - 1 < term.remaining() <= TTL
    assert first.events == [("elected", term.number)]
    assert first.pause == TTL / 3  # in time to renew


def test_later_candidates_stand_by(candidates: list[Candidate]) -> None:
    """They have no term, no callback is called, and they look every half second."""
    first, *others = candidates
    first.campaign()

    assert [other.campaign() for other in others] == [None, None]
    assert [other.events for other in others] == [[], []]
    assert [other.pause for other in others] == [0.5, 0.5]


def test_many_candidates_elect_one(candidates: list[Candidate]) -> None:
    """Of nine candidates, never two lead at a time, and soon one leads."""
    more = [Candidate(candidates[0].nodes.another_client()) for _ in range(6)]

    run(3, *candidates, *more)

    assert [one.leads for one in candidates + more].count(True) == 1


def test_leader_goes_on_leading(candidates: list[Candidate]) -> None:
    """It keeps one term for as long as it renews it."""
    first, *_ = candidates
    term = first.campaign()

    run(600, *candidates)

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


def test_elections_of_other_keys_are_independent(nodes: FakeNodes) -> None:
    """Each key has its own leader."""
    first = Candidate(nodes)
    other = Elector(nodes.another_client().redlock(), "another", ttl=TTL)

    assert first.campaign()
    assert other.campaign()


def test_ttl_above_max_ttl_is_refused(nodes: FakeNodes) -> None:
    """A term must not last longer than the quarantine of a node."""
    with pytest.raises(ConfigurationError, match="above max_ttl"):
        Candidate(nodes, ttl=61.0)


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
