"""``retry``: a call waits for a short run in its process, and else in its queue.

From a backlog it comes back in its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import states

from celery_redlock.line.backlog import (
    Place,
    join_backlog,
    note_run,
    place_of_newcomer,
)
from celery_redlock.locks.lease import Holder, Lease
from celery_redlock.locks.limits import Limit
from celery_redlock.options.lock_options import LockOptions
from celery_redlock.policies import Conflict, Retry, retry
from celery_redlock.testing import SignalRecorder
from tests.unit.support import delay, settings
from tests.unit.tasks.support import KEY, Worker

TEN, TEN_A_MINUTE = Limit("k", 10), Limit("k", 10, 60.0)
LONG_AGO = 1_795_246_614_184_112  # µs since 1970
NOW = LONG_AGO / 1e6  # by the clock of the policy, which stands still here
JUST_NOW = 0.4  # seconds


@pytest.fixture(autouse=True)
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the policy see no time pass: a slow machine changes no decision."""
    monkeypatch.setattr(retry, "SYSTEM_CLOCK", SimpleNamespace(wall=lambda: NOW))


@contextmanager
def begun(worker: Worker, seconds: float) -> Iterator[None]:
    """Let another call hold the lock whose run began so many seconds ago."""
    started = NOW - seconds
    holder = Holder.here(task="job", task_id="other-id", started=started)
    lease = worker.rival.acquire(KEY, holder=holder)
    yield
    worker.rival.release(lease)


def test_call_waits_a_moment_for_a_run_that_has_just_begun(worker: Worker) -> None:
    """It waits once, and is then republished."""
    task = worker.leased_job(on_conflict="retry", retry_countdown=7)

    with begun(worker, JUST_NOW), SignalRecorder("lock_conflict") as events:
        run = worker.run(task)

    assert run.stored == states.RETRY
    assert [event.decision for event in events.seen] == [Retry(7.0, 0.5), Retry(7.0)]
    assert len(worker.published) == 1


@pytest.mark.parametrize("seconds", [0.6, 3600, -5])
def test_call_does_not_wait_for_a_longer_run(worker: Worker, seconds: float) -> None:
    """Also not where the holder's clock is ahead."""
    task = worker.leased_job(on_conflict="retry")

    with begun(worker, seconds), SignalRecorder("lock_conflict") as events:
        run = worker.run(task)

    assert run.stored == states.RETRY
    assert len(events.seen) == 1


@pytest.mark.parametrize("none", [0, timedelta(0)])
def test_patience_of_zero_never_waits(worker: Worker, none: float | timedelta) -> None:
    """A decision may leave the wait out, or make it longer."""
    task = worker.leased_job(on_conflict=Retry(7, patience=none))

    with begun(worker, JUST_NOW), SignalRecorder("lock_conflict") as events:
        worker.run(task)

    assert [event.decision.patience for event in events.seen] == [0]


# -- from a backlog ------------------------------------------------------------------


def refused(
    place: Place | None, *, began: float | None = None, **facts: Any
) -> Conflict:
    """Return the conflict of a call at this place; a holder began so long ago."""
    started = 0.0 if began is None else NOW - began
    holder = Holder("base.attempt", started=started)
    facts = {"limit": TEN, "holder": holder, **facts}
    return Conflict(key="k", task="proj.f", place=place, **facts)


def answer(conflict: Conflict, **options: Any) -> Retry:
    """Return the decision of a task with a ttl of 20 s."""
    resolved = LockOptions(key="k", limit=10, ttl=20, **options).resolve(settings())
    decision = resolved.on_conflict(conflict)
    assert isinstance(decision, Retry)
    return decision


def test_call_comes_back_when_its_turn_is_near() -> None:
    """When the calls before it have had their permits: never later than that."""
    turn = 240 * 0.5 / 10

    seconds = [delay(answer(refused(Place(239, 500, 0.5)))) for _ in range(50)]

    assert 0.95 * turn <= min(seconds) < max(seconds) <= turn


def test_call_is_not_parked_by_a_long_estimate() -> None:
    """The head looks again as calls without a backlog do, the others within a minute.

    The calls before it may be gone: purged from the queue, for example.
    """
    week = 7 * 86400.0

    head = delay(answer(refused(Place(0, 5000, week))))
    behind = delay(answer(refused(Place(20, 5000, week))))
    end = delay(answer(refused(Place(4999, 5000, week))))

    assert 0.95 * 5 <= head <= 15
    assert 0.95 * 3 * 5 <= behind <= 3 * 15
    assert 0.95 * 60 <= end <= 60


def test_call_does_not_come_back_at_once() -> None:
    """Not even if runs take no time: each way through the broker costs something."""
    assert delay(answer(refused(Place(20, 30, 0.000_001)))) == 0.05


@pytest.mark.parametrize(("began", "turn"), [(1, 3 + 4), (3.5, 0.5 + 4), (30, 3 + 4)])
def test_call_behind_one_holder_waits_for_the_rest_of_its_run(
    began: float, turn: float
) -> None:
    """Runs take 4 s. One that takes longer is looked at ever less often."""
    conflict = refused(Place(1, 2, 4.0), began=began, limit=None)

    assert 0.9 * turn - 1 <= delay(answer(conflict)) <= turn + 1


@pytest.mark.parametrize(
    ("place", "began", "turn"),
    [(Place(0, 1), 3.0, 3.0), (Place(19, 20), 3.0, 6.0), (Place(0, 1), None, 0.5)],
)
def test_call_looks_again_when_the_first_run_takes_twice_as_long(
    place: Place, began: float | None, turn: float
) -> None:
    """No run has ended yet, so it is not known how long they take."""
    seconds = delay(answer(refused(place, began=began)))

    assert 0.94 * turn <= seconds <= turn + 2


@pytest.mark.parametrize(
    ("before", "due"), [(0, 12.0), (3, 15.0), (9, 59.0), (10, 72.0), (25, 137.0)]
)
def test_call_comes_back_when_its_start_is_due(before: int, due: float) -> None:
    """Never earlier, and a little apart from the others."""
    dues = (12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0, 20.0, 59.0)
    facts: dict[str, Any] = {"limit": TEN_A_MINUTE, "due": dues, "retry_after": 12.0}

    conflict = refused(Place(before, 26, 0.05), **facts)

    assert due <= delay(answer(conflict)) <= due + 0.5


def test_call_without_a_place_comes_back_as_others_do() -> None:
    """Where no node answered: after half a ttl on average."""
    assert 5 <= delay(answer(refused(None))) <= 15


def test_own_countdown_counts_also_in_a_backlog() -> None:
    """A task may have one, and so may a decision."""
    place = Place(239, 500, 0.5)

    assert answer(refused(place), retry_countdown=7) == Retry(7.0)
    assert answer(refused(place), on_conflict=Retry(9)) == Retry(9.0)


@pytest.mark.parametrize(
    ("place", "waits"),
    [
        (Place(0, 99, 0.1), True),
        (Place(79, 99, 0.06), True),
        (Place(80, 99, 0.01), False),
        (Place(79, 99, 0.07), False),
        (Place(0, 99), False),
    ],
    ids=["next", "the last", "behind it", "longer runs", "no run has ended"],
)
def test_only_the_first_calls_wait_in_their_processes(
    place: Place, waits: bool
) -> None:
    """Eight for each permit, and only if their turn comes in half a second."""
    assert bool(answer(refused(place, began=60.0)).patience) is waits


def test_call_that_has_waited_does_not_wait_again() -> None:
    """It goes back to its queue, however near its turn is."""
    assert answer(refused(Place(0, 99, 0.1), waited=0.5)).patience is None


def test_first_calls_wait_for_a_run_that_has_just_begun() -> None:
    """Eight for each permit, where no run has ended yet."""
    assert answer(refused(Place(79, 80), began=JUST_NOW)).patience
    assert not answer(refused(Place(80, 81), began=JUST_NOW)).patience


def test_text_says_the_place() -> None:
    """In logs and explanations."""
    conflict = refused(Place(240, 500, 0.5))

    assert Retry(12.3).describe(conflict) == (
        "be republished, to run after 12.3 s (240 of 500 that wait are before it)"
    )
    assert Retry(12.3).describe(refused(None)) == "be republished, to run after 12.3 s"


# -- the whole way -------------------------------------------------------------------


@contextmanager
def full(worker: Worker, permits: int = 2) -> Iterator[None]:
    """Let other clients have all permits."""
    limits, holder = (Limit(KEY, permits),), Holder.here(task="job", task_id="other")
    leases: list[Lease] = [
        worker.rival.acquire([KEY], holder=holder, limits=limits)
        for _ in range(permits)
    ]
    yield
    for lease in leases:
        worker.rival.release(lease)


def waiting(worker: Worker) -> int:
    """Return how many calls are in the backlog."""
    place = place_of_newcomer(worker.rival, KEY)
    assert place is not None
    return place.before


def noting(seen: list[Place | None], word: str) -> Callable[[Conflict], str]:
    """Return a policy that notes the place of each call."""

    def note(conflict: Conflict) -> str:
        seen.append(conflict.place)
        return word

    return note


def test_refused_calls_stand_in_the_order_of_publishing(worker: Worker) -> None:
    """Also when they come back, and in whichever order they are refused."""
    seen: list[Place | None] = []
    task = worker.leased_job(limit=2, on_conflict=noting(seen, "retry"))

    with full(worker):
        second = worker.run(task, redlock={"published": LONG_AGO + 1})
        first = worker.run(task, redlock={"published": LONG_AGO})
        worker.run(task, redlock={"published": LONG_AGO + 2})
        worker.run(task, id=second.id)
        worker.run(task, id=first.id)

    assert seen == [Place(0, 1), Place(0, 2), Place(2, 3), Place(1, 3), Place(0, 3)]


def test_run_leaves_the_backlog_and_tells_how_long_it_took(worker: Worker) -> None:
    """A call that was never refused tells it, too."""
    task = worker.leased_job(limit=2)
    with full(worker):
        refused = worker.run(task)
    assert waiting(worker) == 1

    assert worker.run(task, id=refused.id).state == states.SUCCESS

    place = place_of_newcomer(worker.rival, KEY)
    assert place is not None
    assert place.before == 0
    assert place.run_time > 0


@pytest.mark.parametrize("word", ["skip", "raise", "allow"])
def test_call_that_does_not_come_back_leaves_the_backlog(
    worker: Worker, word: str
) -> None:
    """A callable may look at the place, and decide otherwise."""
    seen: list[Place | None] = []
    task = worker.leased_job(limit=2, on_conflict=noting(seen, word))

    with full(worker):
        worker.run(task)

    assert seen == [Place(0, 1)]
    assert waiting(worker) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"on_conflict": "retry"},
        {"limit": 1, "retry_countdown": 7},
        {"limit": 1, "on_conflict": Retry(7)},
    ],
    ids=["no limit", "a countdown of its own", "a countdown of its decision"],
)
def test_task_that_needs_no_place_has_no_backlog(
    worker: Worker, options: dict[str, Any]
) -> None:
    """Its calls pay for none."""
    task = worker.leased_job(**options)

    with full(worker, 1):
        worker.run(task)

    assert waiting(worker) == 0


def test_limit_of_one_has_a_backlog(worker: Worker) -> None:
    """It is a limit that was asked for: refused calls are jobs, and not duplicates."""
    task = worker.leased_job(limit=1)

    with full(worker, 1):
        worker.run(task)

    assert waiting(worker) == 1


def test_explanation_says_how_many_calls_would_be_before_it(worker: Worker) -> None:
    """To explain a call does not put it into the backlog."""
    task = worker.leased_job(limit=1)
    note_run(worker.rival, KEY, 3.0)
    join_backlog(worker.rival, KEY, "a", since=LONG_AGO)

    with full(worker, 1):
        text = str(task.explain().execute)

    assert "(1 of 2 that wait are before it)" in text
    assert waiting(worker) == 1
