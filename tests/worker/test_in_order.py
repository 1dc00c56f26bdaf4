"""Calls with ``in_order`` run in the order in which they were published."""

from __future__ import annotations

from contextlib import closing

import pytest
from celery import states
from celery.result import AsyncResult
from kombu.utils.uuid import uuid

from celery_redlock import Redlock
from celery_redlock.line.backlog import number_in_backlog
from tests.harness.deployment import Deploy, Deployment

WITHIN = 30.0  # seconds
NAME = "ordered"
LONG = 600.0  # seconds


class Ghost:
    """A call that has a place before all others, and is not in the broker yet."""

    def __init__(self, here: Deployment, key: str, seconds: float = LONG) -> None:
        self._here, self._key = here, key
        self.id = uuid()
        with closing(Redlock(here.nodes.urls, node_timeout=2.0)) as redlock:
            number = number_in_backlog(redlock, key, self.id, least=1, margin=seconds)
        self._header = {"published": number, "line": [key, seconds]}

    def send(self, name: str = NAME, **options: object) -> AsyncResult:
        """Publish it, as its publisher does after it has got its number."""
        headers = {"redlock": self._header}
        return self._here.app.send_task(
            name, (self._key,), task_id=self.id, headers=headers, **options
        )


def ran(here: Deployment, key: str) -> list[str]:
    """Return the ids of the calls that have begun, in their order."""
    return [run.task_id for run in here.stage.runs(key)]


def refused(here: Deployment, key: str, name: str = NAME) -> AsyncResult:
    """Publish a call, and wait until it lies in a worker, refused."""
    call = here.send(name, key)
    here.until_received(call.id, 2)
    return call


def test_call_waits_for_one_that_is_still_in_its_queue(
    early: Deployment, key: str
) -> None:
    """The lock is free, and a worker has the later calls first."""
    early.stage.open(key)
    first = Ghost(early, key)
    later = [refused(early, key) for _ in range(2)]
    assert ran(early, key) == []

    first.send().get(timeout=WITHIN)

    assert [call.get(timeout=WITHIN) for call in later] == [call.id for call in later]
    assert ran(early, key) == [first.id, *(call.id for call in later)]


@pytest.mark.long
def test_calls_of_several_workers_run_in_order(deploy: Deploy, key: str) -> None:
    """Each process takes a call when it likes, and all of them end soon."""
    with deploy(workers=2, concurrency=2) as here:
        calls = [here.send("ordered-storm", key, 0.01) for _ in range(30)]

        for call in calls:
            call.get(timeout=WITHIN)

        assert ran(here, key) == [call.id for call in calls]


def test_call_that_never_comes_holds_up_for_its_life(
    prefork: Deployment, key: str
) -> None:
    """Its publisher was killed, or its queue was purged."""
    prefork.stage.open(key)
    Ghost(prefork, key, seconds=2)

    call = prefork.send(NAME, key)

    assert call.get(timeout=WITHIN) == call.id


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # in Celery
def test_call_revoked_without_a_message_holds_up_no_other(
    prefork: Deployment, key: str
) -> None:
    """Its result says that it has ended: no worker ever gets its message."""
    prefork.stage.open(key)
    first = Ghost(prefork, key)
    prefork.app.backend.store_result(first.id, None, states.REVOKED)

    later = prefork.send(NAME, key)

    assert later.get(timeout=WITHIN) == later.id


def test_call_of_an_unknown_task_holds_up_no_other(
    prefork: Deployment, key: str
) -> None:
    """A deploy has removed the task, and a worker discards the message."""
    prefork.stage.open(key)
    first = Ghost(prefork, key)
    later = refused(prefork, key)

    first.send("removed")

    assert later.get(timeout=WITHIN) == later.id


def test_call_keeps_its_place_when_its_process_is_killed(
    prefork: Deployment, key: str
) -> None:
    """Its message comes back, and runs before the one that waits."""
    first = prefork.begin("ordered-late", key)
    later = refused(prefork, key, "ordered-late")

    prefork.kill_child(key)
    prefork.stage.open(key)

    for call in (first, later):
        assert call.get(timeout=WITHIN) == call.id
    assert ran(prefork, key) == [first.id, first.id, later.id]
