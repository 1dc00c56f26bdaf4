"""``SignalRecorder`` records the signals of a block."""

from __future__ import annotations

import threading

import pytest

from celery_redlock.signals import lock_acquired, lock_lost, lock_released
from celery_redlock.testing import SignalRecorder


def test_recorder_records_signals_of_its_block() -> None:
    """In their order, with sender and arguments; not those before or after."""
    lock_acquired.send(sender="before", lease=0, task_id="")

    with SignalRecorder() as events:
        lock_acquired.send(sender="task", lease=1, task_id="a")
        lock_released.send(sender="task", lease=1, task_id="a")
    lock_lost.send(sender="after", lease=2, task_id="", decision=None)

    assert events.names == ["lock_acquired", "lock_released"]
    (acquired,) = events.of("lock_acquired")
    assert (acquired.sender, acquired.lease, acquired.task_id) == ("task", 1, "a")
    assert events.seen == [acquired, *events.of("lock_released")]
    with pytest.raises(AttributeError, match="lock_acquired has no argument 'fence'"):
        _ = acquired.fence


def test_recorder_can_be_limited_to_names() -> None:
    """Other signals are not recorded."""
    with SignalRecorder("lock_lost", "lock_released") as events:
        lock_acquired.send(sender=None, lease=1, task_id="")
        lock_lost.send(sender=None, lease=1, task_id="", decision=None)

    assert events.names == ["lock_lost"]


def test_recorder_waits_for_signals_of_threads() -> None:
    """It returns once the signal was sent the given number of times."""
    with SignalRecorder() as events:
        threads = [
            threading.Thread(
                target=lock_lost.send, kwargs={"sender": index, "lease": index}
            )
            for index in range(2)
        ]
        for thread in threads:
            thread.start()

        second = events.wait_for("lock_lost", count=2)

    assert second == events.of("lock_lost")[1]


def test_recorder_reports_the_signals_instead() -> None:
    """The error of a wait names the signals that were sent."""
    with SignalRecorder() as events:
        lock_acquired.send(sender=None, lease=1, task_id="")

        with pytest.raises(AssertionError) as caught:
            events.wait_for("lock_lost", timeout=0.001)

    assert str(caught.value) == (
        "lock_lost was sent 0 times within 0.001 s and not 1. "
        "These signals were sent: lock_acquired."
    )


def test_recorders_are_independent() -> None:
    """Each has its own receivers, and disconnects them."""
    before = len(lock_acquired.receivers)

    with SignalRecorder() as outer:
        with SignalRecorder() as inner:
            lock_acquired.send(sender=None, lease=1, task_id="")
        lock_acquired.send(sender=None, lease=2, task_id="")

    assert (len(outer.seen), len(inner.seen)) == (2, 1)
    assert len(lock_acquired.receivers) == before
