"""Each end of a call ends its place in the backlog of its key."""

from __future__ import annotations

from typing import Any

import pytest
from celery import states
from celery.result import AsyncResult
from kombu.utils.uuid import uuid

from celery_redlock import Redlock
from celery_redlock.line.backlog import keep_place
from celery_redlock.locks.limits import Limit, Wanted
from celery_redlock.task.header import waits_of
from tests.harness.deployment import Deployment
from tests.harness.waiting import until

SINCE = 1_795_246_614_184_112  # µs since 1970


@pytest.fixture
def here(each_broker: Deployment) -> Deployment:
    """Give a worker on each broker in turn."""
    return each_broker


def until_waiting(here: Deployment, key: str, number: int) -> None:
    """Wait until the backlog of a key has so many calls on each node."""
    name = f"redlock:backlog:{key}"
    until(
        lambda: (
            {int(n.command("ZCARD", name)) for n in here.nodes.dev.nodes} == {number}
        ),
        what=f"{number} calls in the backlog",
    )


def refused(here: Deployment, key: str) -> AsyncResult:
    """Publish a call, and wait until it has a place, which does not end by itself."""
    call = here.send("placed", key)
    until_waiting(here, key, 1)
    keep(here, key, call.id)
    return call


def keep(here: Deployment, key: str, task_id: str) -> None:
    """Give a call a place on each node for an hour."""
    redlock = Redlock(here.nodes.urls)

    def is_kept() -> bool:
        keep_place(redlock, key, task_id, since=SINCE, seconds=3600)
        name = f"redlock:return:{key}"
        left = (node.command("PTTL", name) for node in here.nodes.dev.nodes)
        return all(int(ms) > 60_000 for ms in left)

    until(is_kept, what="a place on each node")
    redlock.close()


def send_placed(here: Deployment, task: str, key: str, **headers: Any) -> AsyncResult:
    """Publish a call as one that comes back to its place, with more headers."""
    task_id = uuid()
    keep(here, key, task_id)
    waits = waits_of(Wanted(key, (Limit(key, 1),)), backlog=key)
    headers["redlock"] = {"waits": waits}
    return here.app.send_task(task, (key,), task_id=task_id, headers=headers)


def test_place_stays_while_the_call_waits(here: Deployment, key: str) -> None:
    """Its countdown ends again and again, and its worker keeps the place."""
    holder = here.begin("placed", key)
    call = refused(here, key)

    here.send("plain-clock", key, countdown=3).get(timeout=60)

    until_waiting(here, key, 1)
    here.finish(key, holder, call)
    until_waiting(here, key, 0)


def test_revoked_call_loses_its_place(here: Deployment, key: str) -> None:
    """When its worker discards it, and not when its turn would come."""
    holder = here.begin("placed", key)
    call = refused(here, key)

    here.app.control.revoke(call.id, reply=True)

    until_waiting(here, key, 0)
    until(lambda: call.state == states.REVOKED, what="the end of the call")
    here.finish(key, holder)


def test_expired_call_loses_its_place(here: Deployment, key: str) -> None:
    """While the other call still runs."""
    holder = here.begin("placed", key)

    # In a header: an expiry in the past as an option lets RabbitMQ drop the message.
    call = send_placed(here, "placed", key, expires="2026-01-01T00:00:00+00:00")

    until_waiting(here, key, 0)
    until(lambda: call.state == states.REVOKED, what="the end of the call")
    here.finish(key, holder)


def test_call_of_an_unknown_task_loses_its_place(here: Deployment, key: str) -> None:
    """A deploy has removed the task, and a worker discards the message."""
    send_placed(here, "removed", key)

    until_waiting(here, key, 0)
