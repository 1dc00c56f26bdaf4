"""``SignalRecorder``: the signals that were sent while a block ran."""

from __future__ import annotations

import threading

import pytest

from celery_redlock.signals import lock_acquired, lock_lost, lock_released
from celery_redlock.testing import SignalRecorder


def test_recorder_writes_down_what_is_sent() -> None:
    """In order, with sender and arguments, while the block runs and not after."""
    lock_acquired.send(sender="before", lease=0, task_id="")

    with SignalRecorder() as events:
        lock_acquired.send(sender="task", lease=1, task_id="a")
        lock_released.send(sender="task", lease=1, task_id="a")
    lock_lost.send(sender="after", lease=2, task_id="", decision=None)

    assert events.names == ["lock_acquired", "lock_released"]
    (acquired,) = events.of("lock_acquired")
    assert (acquired.sender, acquired.lease, acquired.task_id) == ("task", 1, "a")
    assert events.seen == [acquired, *events.of("lock_released")]
    with pytest.raises(AttributeError, match="lock_acquired came without 'fence'"):
        _ = acquired.fence


def test_recorder_can_listen_to_some() -> None:
    """By their names."""
    with SignalRecorder("lock_lost", "lock_released") as events:
        lock_acquired.send(sender=None, lease=1, task_id="")
        lock_lost.send(sender=None, lease=1, task_id="", decision=None)

    assert events.names == ["lock_lost"]


def test_recorder_waits_for_what_a_thread_sends() -> None:
    """Until it was sent, as many times as is asked for."""
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


def test_recorder_says_what_there_was_instead() -> None:
    """A test that fails tells more than that it failed."""
    with SignalRecorder() as events:
        lock_acquired.send(sender=None, lease=1, task_id="")

        with pytest.raises(AssertionError) as caught:
            events.wait_for("lock_lost", timeout=0.001)

    assert str(caught.value) == (
        "lock_lost was sent 0 times within 0.001 s and not 1. There was: lock_acquired."
    )


def test_recorders_do_not_disturb_each_other() -> None:
    """Each has its own ears, and leaves none behind."""
    before = len(lock_acquired.receivers)

    with SignalRecorder() as outer:
        with SignalRecorder() as inner:
            lock_acquired.send(sender=None, lease=1, task_id="")
        lock_acquired.send(sender=None, lease=2, task_id="")

    assert (len(outer.seen), len(inner.seen)) == (2, 1)
    assert len(lock_acquired.receivers) == before
