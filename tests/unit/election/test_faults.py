"""Nodes are away, callbacks fail, and signals strike."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import celery_redlock
from celery_redlock.election import Elector, Term
from tests.strikes import Strike, Struck
from tests.unit.election.support import KEY, TTL, Candidate, run

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock, FakeNodes


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


PACKAGE = Path(celery_redlock.__file__).parent


@pytest.mark.parametrize("where", ["election.py", "core"])
def test_campaign_that_is_interrupted_anywhere_leaves_no_lock(
    nodes: FakeNodes, clock: FakeClock, where: str
) -> None:
    """SIGTERM may strike between the grant and the first line that knows of it."""
    nodes.redlock()
    place, was_struck = 0, True
    while was_struck:
        place += 1
        first, second = (Candidate(nodes.another_client()) for _ in range(2))
        strike = Strike(place, str(PACKAGE / where))
        with suppress(Struck), strike:
            first.campaign()
        was_struck = strike.has_struck

        first.resign()

        assert second.campaign(), f"a lock was left at place {place}"
        second.resign()
        clock.sleep(1)
    assert place > 8


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
