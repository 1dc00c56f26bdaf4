"""Who of those that wait for a lock is the next: majorities, and what goes wrong."""

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
    far = nodes.another_client()
    far.partition(*others)
    new = turn(far.redlock(ttl=10.0), "new", NOW + 1)
    assert new.offer(ttl=10) == (None, False, False)

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
    nodes.clock.sleep(10.1)

    assert old.offer(ttl=10, entered=True).by is None
    assert new.offer(ttl=10, entered=True).by is None


def test_one_that_makes_way_leaves_nothing(nodes: FakeNodes, redlock: Redlock) -> None:
    """Where a node did not know better and entered it, it is struck off again."""
    far = nodes.another_client()
    far.partition(0, 1)
    turn(far.redlock(ttl=10.0), "new", NOW + 1).offer(ttl=10)

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


# -- any course of events ----------------------------------------------------------


class Course:
    """Calls of one task that come, are refused, come back, run, and are killed.

    The lock is taken as given: one variable. Nodes are away now and then, answer or
    hear late, and forget; publishers' clocks differ.
    """

    def __init__(self, seed: int, keep: str) -> None:
        self.dice = random.Random(seed)  # noqa: S311  (no secret)
        self.keep = keep
        self.nodes = FakeNodes(5)
        self.redlock = self.nodes.redlock(ttl=10.0)
        self.now = 0
        self.arrived: dict[str, int] = {}
        self.waiting: dict[str, bool] = {}  # and whether a majority has entered it
        self.ended: set[str] = set()
        self.runs: list[tuple[str, int]] = []
        self.holder, self.was_entered = "", False

    def turn(self, task_id: str) -> Turn:
        """Return the turn of a call; its publisher's clock may be wrong."""
        skew = random.Random(task_id).randrange(-3, 4)  # noqa: S311  (no secret)
        published = NOW + self.arrived[task_id] + skew
        return turn(self.redlock, task_id, published, keep=self.keep)

    def step(self) -> None:
        """Let one thing happen."""
        self.now += 1
        self.nodes.heal()
        if self.dice.random() < 0.5:
            self.nodes.partition(*self.dice.sample(range(5), self.dice.randrange(1, 5)))
        self.nodes.clock.sleep(self.dice.choice([0.0, 0.1, 6.0]))
        what = self.dice.choice(["arrive", "come back", "come back", "end", "kill"])
        if what == "arrive":
            task_id = f"call-{self.now}"
            self.arrived[task_id] = self.now
            self.come(task_id, entered=False, offered=False)
        elif what == "come back":
            self.come_back()
        elif self.holder:
            self.end(killed=what == "kill")

    def come_back(self) -> None:
        """Let one of those that wait try again."""
        if self.waiting:
            task_id = self.dice.choice(sorted(self.waiting))
            self.come(task_id, entered=self.waiting.pop(task_id), offered=True)

    def come(self, task_id: str, *, entered: bool, offered: bool) -> None:
        """Let a call try for the lock, as an `Admission` does."""
        mine = self.turn(task_id)
        if self.holder:
            answer = mine.offer(ttl=10, entered=entered, holder_id=self.holder)
            if answer.by is None:
                self.waiting[task_id] = answer.entered
        elif not offered or mine.take(ttl=300, entered=entered).by is None:
            self.holder, self.was_entered = task_id, entered
            self.runs.append((task_id, self.now))
        if task_id not in self.waiting and task_id != self.holder:
            self.ended.add(task_id)

    def end(self, *, killed: bool) -> None:
        """End the body, or have it killed and delivered again."""
        task_id, self.holder = self.holder, ""
        if killed:
            self.runs.pop()
            self.waiting[task_id] = self.was_entered  # as its message says

    def finish(self) -> None:
        """Let all nodes be there, and everybody come back until nobody waits."""
        self.nodes.heal()
        for _ in range(10 * len(self.arrived) + 10):
            self.now += 1
            if self.holder:
                self.end(killed=False)
            self.come_back()
        assert not self.waiting

    def uncovered(self) -> list[str]:
        """Return the calls that made way though no body has begun since they came."""
        last = max((began for _, began in self.runs), default=-1)
        return [call for call in self.ended if self.arrived[call] > last]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), keep=st.sampled_from(["latest", "first"]))
def test_no_call_is_lost(seed: int, keep: str) -> None:
    """Whoever makes way is followed by a run that began after it had come."""
    course = Course(seed, keep)
    for _ in range(30):
        course.step()

    course.finish()

    assert course.uncovered() == [], f"seed {seed}, {keep}"


@pytest.mark.parametrize("keep", ["latest", "first"])
@pytest.mark.parametrize("seed", range(20))
def test_one_more_run_follows_where_all_is_well(seed: int, keep: str) -> None:
    """However many come while one runs, in whatever order they come back."""
    course = Course(seed, keep)
    calls = [f"call-{number}" for number in range(8)]
    for number, task_id in enumerate(calls):
        course.arrived[task_id] = 10 * number
        course.come(task_id, entered=False, offered=False)

    course.finish()

    assert [task_id for task_id, _ in course.runs] == [
        "call-0",
        "call-7" if keep == "latest" else "call-1",
    ]
