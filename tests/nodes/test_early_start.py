"""The lines of refused calls in one worker: what starts, in which order, and when.

The event loop and its timer are Celery's own, and the nodes are real.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state
from kombu.asynchronous import Hub

from celery_redlock import Redlock
from celery_redlock.app.early_start import EarlyStarts
from celery_redlock.basics.clock import SystemClock
from celery_redlock.line.backlog import MARGIN
from celery_redlock.locks.limits import Limit, Waits, Wanted
from tests.harness.waiting import until

LATER = 3600.0  # seconds


class Loop:
    """An event loop with the lines of one worker.

    Attributes:
        started: The ids of the calls that have started, in order.
    """

    def __init__(self, redlock: Redlock, **options: Any) -> None:
        self.hub: Any = Hub()  # type: ignore[no-untyped-call]
        self.starts = EarlyStarts(redlock, self.hub.timer, self.hub, **options)
        self.started: list[str] = []
        self.requests: dict[str, Any] = {}

    def add(
        self, task_id: str, wanted: Wanted, rank: int = 1, *, after: float = LATER
    ) -> Any:
        """Let a call wait, with a countdown."""
        request = SimpleNamespace(id=task_id, expires=None, stamped_headers=[])
        self.requests[task_id] = request
        return self.starts.add(
            request,
            Waits(wanted, rank, stays_after_countdown=True, backlog="", margin=MARGIN),
            at=self.starts._clock.monotonic() + after,  # noqa: SLF001
            start=lambda: self.started.append(task_id),
        )

    def accepted(self, task_id: str) -> None:
        """Tell that a process of the pool has taken this call."""
        call = self.requests[task_id].redlock_waiting
        call.starts.accepted(call, 1)

    def ended(self, task_id: str) -> None:
        """Tell that this copy of a call has ended."""
        call = self.requests[task_id].redlock_waiting
        call.starts.ended(call)

    def until_started(self, *task_ids: str) -> None:
        """Run the loop until these calls have started, and no others."""

        def has() -> bool:
            self.hub.run_once()
            return len(self.started) >= len(task_ids)

        until(has, what=f"{task_ids} to start")
        assert self.started == [*task_ids]

    def close(self) -> None:
        """Stop everything."""
        self.starts.stop()
        self.hub.close()


@pytest.fixture
def loop(redlock: Redlock) -> Iterator[Loop]:
    """Give the lines of a worker on the shared nodes."""
    loop = Loop(redlock)
    yield loop
    loop.close()


def test_head_is_the_call_that_was_published_first(
    loop: Loop, rival: Redlock, key: str
) -> None:
    """It is not the one that was received first."""
    lease = rival.acquire(key)
    for rank in (3, 1, 2):
        loop.add(str(rank), Wanted(key), rank)

    rival.release(lease)

    loop.until_started("1")


def test_one_call_at_a_time_tries_for_a_free_lock(loop: Loop, key: str) -> None:
    """The next one starts when that has ended, and any thread may say so."""
    for rank in (1, 2, 3):
        loop.add(str(rank), Wanted(key), rank)
    loop.until_started("1")

    for rank in (1, 2):
        thread = threading.Thread(target=loop.ended, args=(str(rank),))
        thread.start()
        thread.join()
        loop.until_started(*"123"[: rank + 1])


def test_call_that_is_due_leaves_the_room_to_one_that_tries(
    loop: Loop, key: str
) -> None:
    """While short runs follow each other, countdowns end: the pool is not filled."""
    loop.add("tries", Wanted(key), 1)
    loop.until_started("tries")
    loop.add("due", Wanted(key), 2, after=0.2)
    witness: list[int] = []
    loop.hub.timer.call_after(0.6, witness.append, (1,))

    until(lambda: loop.hub.run_once() or witness, what="a later entry of the timer")

    assert loop.started == ["tries"]
    loop.ended("tries")
    loop.until_started("tries", "due")


def test_call_with_which_no_process_begins_is_waited_for_a_minute(
    redlock: Redlock, key: str
) -> None:
    """Celery's ``rate_limit`` can keep a call of another task that was started."""
    ahead = [0.0]

    class Clock(SystemClock):
        def monotonic(self) -> float:
            return super().monotonic() + ahead[0]

    loop = Loop(redlock, clock=Clock())
    for rank in (1, 2):
        loop.add(str(rank), Wanted(key), rank)
    loop.until_started("1")
    ahead[0] = 61.0

    loop.until_started("1", "2")

    loop.close()


def test_call_that_has_begun_is_not_waited_for_any_longer(loop: Loop, key: str) -> None:
    """It has its permit by then, or none: a look at the others shows that."""
    wanted = Wanted(key, (Limit(key, 2),))
    for rank in (1, 2, 3):
        loop.add(str(rank), wanted, rank)
    loop.until_started("1", "2")

    for task_id in "12":
        loop.accepted(task_id)

    loop.until_started("1", "2", "3")


def test_countdown_starts_a_call_where_no_node_answers(key: str) -> None:
    """It is not known whether the lock is held."""
    redlock = Redlock(["redis://127.0.0.1:1/0"])
    loop = Loop(redlock)

    loop.add("a", Wanted(key), after=0.2)

    loop.until_started("a")
    loop.close()
    redlock.close()


def test_revoked_call_ends_with_its_countdown(
    loop: Loop, rival: Redlock, key: str
) -> None:
    """Celery discards it when it starts, also while the lock is held."""
    lease = rival.acquire(key)
    loop.add("waits", Wanted(key), 1, after=0.5)
    loop.add("revoked", Wanted(key), 2, after=0.5)
    state.revoked.add("revoked")

    loop.until_started("revoked")

    state.revoked.discard("revoked")
    rival.release(lease)
    loop.ended("revoked")
    loop.until_started("revoked", "waits")


def test_call_beyond_the_most_keys_does_not_end_the_line_of_later_ones(
    loop: Loop, rival: Redlock, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no line, and starts with its countdown."""
    monkeypatch.setattr("celery_redlock.app.early_start._MOST_KEYS", 1)
    lease = rival.acquire(key)
    loop.add("other", Wanted(f"{key}-other"))
    loop.add("beyond", Wanted(key), after=3.0)  # the other one starts long before
    loop.until_started("other")
    loop.ended("other")
    until(lambda: loop.hub.run_once() or not loop.starts._by_key, what="no call")  # noqa: SLF001
    state.revoked.add("beyond")

    loop.add("later", Wanted(key))
    loop.until_started("other", "beyond")

    state.revoked.discard("beyond")
    rival.release(lease)
    loop.until_started("other", "beyond", "later")


def test_call_is_tried_before_the_broker_delivers_it_again(
    redlock: Redlock, rival: Redlock, key: str
) -> None:
    """A message must not stay in a worker for longer than the broker lets it."""
    loop = Loop(redlock, stays_for=2.0)
    lease = rival.acquire(key)

    loop.add("a", Wanted(key), after=0.2)

    loop.until_started("a")
    rival.release(lease)
    loop.close()


def test_calls_of_a_closed_connection_never_start(
    redlock: Redlock, rival: Redlock, key: str
) -> None:
    """The broker delivers them again. The timer goes on while a pool ends."""
    loop = Loop(redlock)
    lease = rival.acquire(key)
    entry = loop.add("a", Wanted(key), after=0.2)
    loop.starts.stop()
    witness: list[int] = []
    loop.hub.timer.call_after(1.0, witness.append, (1,))

    rival.release(lease)
    until(lambda: loop.hub.run_once() or witness, what="a later entry of the timer")

    assert entry.canceled
    assert loop.started == []
    loop.hub.close()
