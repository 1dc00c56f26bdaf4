"""Who of those that wait for a lock is the next: majorities, ties, and what goes wrong."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_redlock.buffering import Turn, give_up_turn
from celery_redlock.testing import FakeNodes

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock

NOW = 1_795_246_614_184_112  # µs since 1970


@pytest.fixture
def nodes() -> FakeNodes:
    """Give five nodes, and a clock that stands still."""
    return FakeNodes(5)


@pytest.fixture
def redlock(nodes: FakeNodes) -> Redlock:
    """Give the lock service on them."""
    return nodes.redlock(ttl=10.0)


def turn(redlock: Redlock, task_id: str, published: int, **options: Any) -> Turn:
    """Return the turn of a call."""
    facts = {"key": "k", "task": "proj.f", "expires": 0.0, "keep": "latest", **options}
    return Turn(redlock=redlock, task_id=task_id, published=published, **facts)


def test_newest_is_the_next(redlock: Redlock) -> None:
    """Who was published later takes the place; who was earlier is told by whom."""
    old, new = turn(redlock, "old", NOW), turn(redlock, "new", NOW + 1)

    assert old.offer(ttl=10) == (None, True, False)
    assert new.offer(ttl=10) == (None, True, False)
    assert old.offer(ttl=10, entered=True) == ("new", False, True)


def test_first_is_the_next(redlock: Redlock) -> None:
    """The same the other way round."""
    first = turn(redlock, "first", NOW, keep="first")
    later = turn(redlock, "later", NOW + 1, keep="first")

    assert later.offer(ttl=10).by is None
    assert first.offer(ttl=10).by is None
    assert later.offer(ttl=10, entered=True).by == "first"


def test_one_that_has_run_is_no_more_the_next(redlock: Redlock) -> None:
    """Those whom it stood for are told so; for those who come after it is nothing."""
    before, runs = turn(redlock, "before", NOW), turn(redlock, "runs", NOW + 1)
    before.offer(ttl=10)
    runs.offer(ttl=10)

    assert runs.take(ttl=10, entered=True).by is None

    assert before.take(ttl=10, entered=True) == ("runs", False, False)
    assert turn(redlock, "after", NOW).offer(ttl=10).by is None


def test_calls_of_other_tasks_and_keys_are_apart(redlock: Redlock) -> None:
    """A job never makes way for another job, whatever lock they share."""
    turn(redlock, "new", NOW + 1).offer(ttl=10)

    for other in ({"task": "proj.g"}, {"key": "k2"}):
        assert turn(redlock, "old", NOW, **other).offer(ttl=10).by is None


@pytest.mark.parametrize("minority", [(0,), (0, 1), (3, 4)])
def test_minority_that_knows_another_one_ends_nobody(
    nodes: FakeNodes, redlock: Redlock, minority: tuple[int, ...]
) -> None:
    """What was written on too few nodes is no reason to end."""
    others = [index for index in range(5) if index not in minority]
    nodes.partition(*others)
    assert turn(redlock, "new", NOW + 1).offer(ttl=10) == (None, False, False)
    nodes.heal()

    assert turn(redlock, "old", NOW).offer(ttl=10).by is None


def test_majority_suffices(nodes: FakeNodes, redlock: Redlock) -> None:
    """Two of five nodes may be away, now and then."""
    nodes.partition(0, 1)
    turn(redlock, "new", NOW + 1).offer(ttl=10)

    assert turn(redlock, "old", NOW).offer(ttl=10).by == "new"


def test_too_few_answers_end_nobody(nodes: FakeNodes, redlock: Redlock) -> None:
    """Where nobody can tell, a call waits, or runs, itself."""
    turn(redlock, "new", NOW + 1).offer(ttl=10)
    nodes.partition(0, 1, 2)

    old = turn(redlock, "old", NOW)

    assert old.offer(ttl=10) == (None, False, False)
    assert old.take(ttl=10, entered=True).by is None


def test_forgotten_register_is_entered_again(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Nodes that restart empty end nobody."""
    old, new = turn(redlock, "old", NOW), turn(redlock, "new", NOW + 1)
    old.offer(ttl=10)
    new.offer(ttl=10)
    nodes.clock.advance(10.1)

    assert old.offer(ttl=10, entered=True).by is None
    assert new.offer(ttl=10, entered=True).by is None


def test_one_that_makes_way_leaves_nothing(nodes: FakeNodes, redlock: Redlock) -> None:
    """Where a node did not know better and entered it, it is struck off again."""
    nodes.partition(0, 1)
    turn(redlock, "new", NOW + 1).offer(ttl=10)
    nodes.heal()

    assert turn(redlock, "old", NOW).offer(ttl=10).by == "new"

    assert turn(redlock, "oldest", NOW - 1).offer(ttl=10).by == "new"
    give_up_turn(redlock, "k", "proj.f", "new")
    assert turn(redlock, "oldest", NOW - 1).offer(ttl=10).by is None


@pytest.mark.parametrize(
    ("mine", "its", "by"),
    [
        (0.0, 0.0, "new"),
        (0.0, 100.0, None),
        (100.0, 0.0, "new"),
        (100.0, 99.9, None),
        (100.0, 100.0, "new"),
    ],
)
def test_one_that_expires_stands_for_none_that_lives_longer(
    redlock: Redlock, mine: float, its: float, by: str | None
) -> None:
    """It may never run."""
    turn(redlock, "new", NOW + 1, expires=its).offer(ttl=10)

    assert turn(redlock, "old", NOW, expires=mine).offer(ttl=10).by == by


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), keep=st.sampled_from(["latest", "first"]))
def test_somebody_is_always_left(seed: int, keep: str) -> None:
    """Whatever nodes are away or forget, and whoever comes again: not all make way.

    Each call offers itself, and comes back, in any order; each time other nodes are
    away. Whoever has not ended in the end is there to run.
    """
    dice = random.Random(seed)
    nodes = FakeNodes(5, clock=None)
    redlock = nodes.redlock(ttl=10.0)
    calls = [
        turn(redlock, f"call-{n}", NOW + dice.randrange(4), keep=keep) for n in range(5)
    ]
    waiting = {call.task_id: (call, False) for call in calls}
    for _ in range(20):
        nodes.heal()
        nodes.partition(*dice.sample(range(5), dice.randrange(4)))
        nodes.clock.advance(dice.choice([0.1, 6.0]))
        call, entered = waiting[dice.choice(sorted(waiting))]
        answer = call.offer(ttl=10, entered=entered)
        if answer.by is None:
            waiting[call.task_id] = call, answer.entered
            continue
        del waiting[call.task_id]
        assert waiting, f"seed {seed}: all have made way"
