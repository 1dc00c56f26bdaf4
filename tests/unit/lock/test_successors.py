"""The successor register: majorities, and every failure that they survive."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_redlock.line.successors import (
    SuccessorRegister,
    note_published,
    withdraw,
)
from celery_redlock.locks.redlock import Redlock
from celery_redlock.scripts.keys import Keys
from celery_redlock.testing import FakeNodes
from tests.unit.lock.support import Site

NOW = 1_795_246_614_184_112  # µs since 1970


def register_of(
    redlock: Redlock, task_id: str, published: int, **options: Any
) -> SuccessorRegister:
    """Return the register for a call."""
    facts = {"key": "k", "task": "proj.f", "expires": 0.0, "keep": "latest", **options}
    return SuccessorRegister(
        redlock=redlock, task_id=task_id, published=published, **facts
    )


def test_names_of_two_tasks_differ() -> None:
    """A colon in the name of a task is none that ends the key."""
    keys = Keys("redlock")

    names = {
        name(key, task)
        for key, task in (("k", "shop:sync"), ("k:shop", "sync"), ("k", "shop%3Async"))
        for name in (keys.successor, keys.order)
    }

    assert len(names) == 6
    assert keys.successor("k", "shop.sync") == "redlock:next:k:shop.sync"


@pytest.mark.parametrize(
    ("keep", "loser", "winner"), [("latest", NOW, NOW + 1), ("first", NOW + 1, NOW)]
)
def test_latest_call_supersedes_earlier_ones(
    redlock: Redlock, keep: str, loser: int, winner: int
) -> None:
    """The superseded call learns the other's id. ``keep="first"`` is the reverse."""
    old = register_of(redlock, "old", loser, keep=keep)
    new = register_of(redlock, "new", winner, keep=keep)

    assert old.enter(ttl=10) == (None, True, False)
    assert new.enter(ttl=10) == (None, True, False)
    assert old.enter(ttl=10, entered=True) == ("new", False, True)


def test_calls_of_other_tasks_and_keys_are_apart(redlock: Redlock) -> None:
    """A call is never superseded by one of another task or key."""
    register_of(redlock, "new", NOW + 1).enter(ttl=10)

    for other in ({"task": "proj.g"}, {"key": "k2"}):
        assert register_of(redlock, "old", NOW, **other).enter(ttl=10).by is None


@pytest.mark.parametrize("minority", [(0,), (0, 1), (3, 4)])
def test_minority_supersedes_no_call(site: Site, minority: tuple[int, ...]) -> None:
    """An entry on too few nodes ends no call."""
    others = [index for index in range(5) if index not in minority]
    far = site.nodes.another_client()
    far.partition(*others)
    new = register_of(far.redlock(ttl=10.0), "new", NOW + 1)
    assert new.enter(ttl=10) == (None, False, False)

    assert register_of(site.redlock, "old", NOW).enter(ttl=10).by is None


def test_majority_suffices(site: Site) -> None:
    """Two of five nodes may be away."""
    site.nodes.partition(0, 1)
    register_of(site.redlock, "new", NOW + 1).enter(ttl=10)

    assert register_of(site.redlock, "old", NOW).enter(ttl=10).by == "new"


def test_too_few_answers_supersede_no_call(site: Site) -> None:
    """Without a majority a call waits, or runs, itself."""
    register_of(site.redlock, "new", NOW + 1).enter(ttl=10)
    site.nodes.partition(0, 1, 2)

    old = register_of(site.redlock, "old", NOW)

    assert old.enter(ttl=10) == (None, False, False)
    assert old.start(ttl=10, entered=True).by is None


def test_forgotten_register_is_entered_again(site: Site) -> None:
    """Nodes that restart empty end no call."""
    old, new = (
        register_of(site.redlock, "old", NOW),
        register_of(site.redlock, "new", NOW + 1),
    )
    old.enter(ttl=10)
    new.enter(ttl=10)
    site.nodes.clock.sleep(10.1)

    assert old.enter(ttl=10, entered=True).by is None
    assert new.enter(ttl=10, entered=True).by is None


def test_superseded_call_is_withdrawn(site: Site) -> None:
    """A node that did not know the better candidate forgets the superseded call."""
    far = site.nodes.another_client()
    far.partition(0, 1)
    register_of(far.redlock(ttl=10.0), "new", NOW + 1).enter(ttl=10)

    assert register_of(site.redlock, "old", NOW).enter(ttl=10).by == "new"

    assert register_of(site.redlock, "oldest", NOW - 1).enter(ttl=10).by == "new"
    withdraw(site.redlock, "k", "proj.f", "new")
    assert register_of(site.redlock, "oldest", NOW - 1).enter(ttl=10).by is None


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
def test_call_that_expires_supersedes_none_that_lives_longer(
    site: Site, mine: float, its: float, by: str | None
) -> None:
    """A call that expires may never run."""
    register_of(site.redlock, "new", NOW + 1, expires=its).enter(ttl=10)

    assert register_of(site.redlock, "old", NOW, expires=mine).enter(ttl=10).by == by


# -- any course of events ----------------------------------------------------------


class Course:
    """Calls of one task that come, are refused, come back, run, and are killed.

    The lock is one variable. Nodes are away now and then, answer late, get requests
    late, and forget; publishers' clocks differ. Calls of an ``announced`` course stay
    in a queue for a while. Their publishers tell the nodes of them, soon or late.
    """

    def __init__(self, seed: int, keep: str, *, announced: bool = False) -> None:
        self.announced = announced
        self.queued: list[str] = []
        self.untold: list[str] = []
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

    def register_of(self, task_id: str) -> SuccessorRegister:
        """Return the register for a call; its publisher's clock may be wrong."""
        skew = random.Random(task_id).randrange(-3, 4)  # noqa: S311  (no secret)
        published = NOW + self.arrived[task_id] + skew
        return register_of(self.redlock, task_id, published, keep=self.keep)

    def step(self) -> None:
        """Let one event happen."""
        self.now += 1
        self.nodes.heal()
        if self.dice.random() < 0.5:
            self.nodes.partition(*self.dice.sample(range(5), self.dice.randrange(1, 5)))
        self.nodes.clock.sleep(self.dice.choice([0.0, 0.1, 6.0]))
        what = self.dice.choice(["arrive", "come back", "come back", "end", "kill"])
        if self.announced:
            self.announce_some()
        if what == "arrive":
            task_id = f"call-{self.now}"
            self.arrived[task_id] = self.now
            if self.announced:
                self.queued.append(task_id)
                self.untold.append(task_id)
            else:
                self.come(task_id, entered=False, offered=False)
        elif what == "come back":
            self.come_back()
        elif self.holder:
            self.end(killed=what == "kill")

    def announce_some(self) -> None:
        """Let publishers tell the nodes of their calls, in order, or never."""
        while self.untold and self.dice.random() < 0.7:
            task_id = self.untold.pop(0)
            if self.dice.random() < 0.9:
                note_published(self.redlock, "k", "proj.f", task_id, ttl=3600)

    def come_back(self) -> None:
        """Let one of the calls in the queue come, or a waiting one try again."""
        if self.queued and self.dice.random() < 0.5:
            task_id = self.queued.pop(self.dice.randrange(min(2, len(self.queued))))
            self.come(task_id, entered=False, offered=True)
        elif self.waiting:
            task_id = self.dice.choice(sorted(self.waiting))
            self.come(task_id, entered=self.waiting.pop(task_id), offered=True)

    def come(self, task_id: str, *, entered: bool, offered: bool) -> None:
        """Let a call try for the lock, as an `Admission` does."""
        mine = self.register_of(task_id)
        if self.holder:
            answer = mine.enter(ttl=10, entered=entered, holder_id=self.holder)
            if answer.by is None:
                self.waiting[task_id] = answer.entered
        elif not offered or mine.start(ttl=300, entered=entered).by is None:
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
        """Reconnect all nodes, and let calls come back until none waits."""
        self.nodes.heal()
        for _ in range(30 * len(self.arrived) + 30):
            self.now += 1
            if self.holder:
                self.end(killed=False)
            self.come_back()
        assert not self.waiting
        assert not self.queued

    def uncovered(self) -> list[str]:
        """Return the superseded calls without a body that began after they came."""
        last = max((began for _, began in self.runs), default=-1)
        return [call for call in self.ended if self.arrived[call] > last]


@example(seed=145273, keep="latest", announced=True)  # told of after it gave way
@given(
    seed=st.integers(0, 2**32),
    keep=st.sampled_from(["latest", "first"]),
    announced=st.booleans(),
)
def test_no_call_is_lost(seed: int, keep: str, *, announced: bool) -> None:
    """A body begins after every superseded call was published."""
    course = Course(seed, keep, announced=announced)
    for _ in range(30):
        course.step()

    course.finish()

    assert course.uncovered() == [], f"seed {seed}, {keep}"


@pytest.mark.parametrize("keep", ["latest", "first"])
@pytest.mark.parametrize("seed", range(10))
def test_announced_calls_make_two_runs_if_nothing_fails(seed: int, keep: str) -> None:
    """One call runs; any number that is published meanwhile makes one more run."""
    course = Course(seed, keep)
    calls = [f"call-{number}" for number in range(8)]
    for number, task_id in enumerate(calls):
        course.arrived[task_id] = number
        note_published(course.redlock, "k", "proj.f", task_id, ttl=3600)
        if not number:
            course.come(task_id, entered=False, offered=True)
        else:
            course.queued.append(task_id)
    course.end(killed=False)  # no process was free until now

    course.finish()

    first, second = (task_id for task_id, _ in course.runs)
    assert first == "call-0"
    # Two calls may change places on their way to a worker.
    assert second in (["call-7"] if keep == "latest" else ["call-1", "call-2"])


@pytest.mark.parametrize("keep", ["latest", "first"])
@pytest.mark.parametrize("seed", range(20))
def test_one_more_run_follows_if_nothing_fails(seed: int, keep: str) -> None:
    """For any number of calls that come during a run, in any order."""
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
