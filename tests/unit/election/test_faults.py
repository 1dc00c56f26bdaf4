"""Faults: nodes are away, callbacks fail, attempts are interrupted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import celery_redlock
from celery_redlock.election import Elector, Term
from tests.interruptions import counts_places, interruptions
from tests.unit.election.support import KEY, TTL, Candidate, run

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock, FakeNodes


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
@pytest.mark.parametrize("where", ["election.py", "core"])
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
    assert place > 8


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
