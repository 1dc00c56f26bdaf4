"""Each end of a call ends what the nodes keep of it: its claim, its place, its entry.

The calls are of tasks that have several of these at once: a claim and a place in the
line, or an entry in the successor register.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import states
from celery.result import AsyncResult

from celery_redlock import singleton_task
from tests.harness.deployment import Deploy, Deployment
from tests.harness.waiting import until
from tests.worker.project.jobs import ENTERED

NUMBERS = 1_000_000_000_000  # scores of calls that wait are above
RECORDS = {"entered": {"claim", "place"}, "followed": {"successor"}}
tasks = pytest.mark.parametrize("name", RECORDS)


@pytest.fixture
def here(each_broker: Deployment) -> Deployment:
    """Give a worker on each broker in turn."""
    return each_broker


def found(here: Deployment, key: str, name: str, task_id: str) -> set[str]:
    """Return the records in which a node has an entry of a call that waits."""
    records = set()
    for node in here.nodes.dev.nodes:
        if task_id in str(node.command("GET", f"redlock:claim:{key}")):
            records.add("claim")
        if node.command("ZSCORE", f"redlock:backlog:{key}", task_id) is not None:
            records.add("place")
        number = node.command("ZSCORE", f"redlock:order:{key}:{name}", task_id)
        if number is not None and float(number) > NUMBERS:
            records.add("successor")
        entry = str(node.command("GET", f"redlock:next:{key}:{name}"))
        if task_id in entry and "waits" in entry:
            records.add("successor")
    return records


def until_ended(here: Deployment, key: str, name: str, *calls: AsyncResult) -> None:
    """Wait until no node has an entry of these calls."""
    for call in calls:
        until(
            lambda call=call: not found(here, key, name, call.id),  # type: ignore[misc]
            what=f"the ends of {found(here, key, name, call.id)}",
        )


def entered(here: Deployment, name: str, key: str, *args: Any, **options: Any) -> Any:
    """Publish a call, and check that the nodes have its entries."""
    call = here.send(name, key, *args, **options)
    records = RECORDS[name.partition("-")[0]]
    if "expires" in options:  # its claim ends with it, and may have ended
        records = records - {"claim"}
    until(lambda: found(here, key, name, call.id) >= records, what=f"{records}")
    return call


def take(here: Deployment, queue: str, call: AsyncResult) -> None:
    """Let a worker take a call from a queue that has no consumer."""
    here.app.control.add_consumer(queue, reply=True, limit=1)
    here.until_received(call.id, 1)
    here.app.control.cancel_consumer(queue, reply=True, limit=1)


@pytest.mark.parametrize("how", ["", "fail", "reject"])
@tasks
def test_run_ends_all_entries(here: Deployment, key: str, name: str, how: str) -> None:
    """They end when it begins, so its outcome does not matter."""
    holder = here.begin("job", key)
    call = entered(here, name, key, how)

    here.finish(key, holder)

    until_ended(here, key, name, call)
    until(lambda: len(here.stage.runs(key)) == 2, what="the run of the call")


@tasks
def test_failure_before_the_body_ends_all_entries(
    here: Deployment, key: str, name: str
) -> None:
    """A hook of the task fails, and the lock is never asked for."""
    queue = f"aside-{key}"
    call = entered(here, f"{name}-unready", key, queue=queue)

    take(here, queue, call)

    until_ended(here, key, f"{name}-unready", call)
    with pytest.raises(LookupError):
        call.get(timeout=60)


@tasks
def test_revocation_of_a_refused_call_ends_all_entries(
    here: Deployment, key: str, name: str
) -> None:
    """Its worker discards it when its countdown ends."""
    holder = here.begin("job", key)
    call = entered(here, name, key)
    here.until_received(call.id, 2)

    here.app.control.revoke(call.id, reply=True, limit=1)

    until_ended(here, key, name, call)
    here.finish(key, holder)


@tasks
def test_revocation_in_the_queue_ends_all_entries(
    here: Deployment, key: str, name: str
) -> None:
    """The worker that receives the call discards it."""
    queue = f"aside-{key}"
    call = entered(here, name, key, queue=queue)

    here.app.control.revoke(call.id, reply=True, limit=1)
    take(here, queue, call)

    until_ended(here, key, name, call)
    assert here.stage.runs(key) == []


@tasks
def test_expiry_in_the_queue_ends_all_entries(
    prefork: Deployment, key: str, name: str
) -> None:
    """The worker that receives the call discards it."""
    queue = f"aside-{key}"
    call = entered(prefork, name, key, queue=queue, expires=1)
    expires_at = time.time() + 1
    until(lambda: time.time() > expires_at, what="the expiry")

    take(prefork, queue, call)

    until_ended(prefork, key, name, call)
    assert prefork.stage.runs(key) == []


def test_call_of_a_task_that_was_removed_ends_its_entries(
    here: Deployment, key: str
) -> None:
    """A deploy has removed it from the workers alone, and they discard the message."""
    queue, name = f"aside-{key}", "entered-removed"

    @singleton_task(app=here.app, name=name, key="{key}", shared=False, **ENTERED)
    def removed(key: str) -> str:
        return key

    call = entered(here, name, key, queue=queue)
    here.app.tasks.unregister(name)

    here.app.control.add_consumer(queue, reply=True, limit=1)

    until_ended(here, key, name, call)
    here.app.control.cancel_consumer(queue, reply=True, limit=1)


def test_message_that_cannot_be_decoded_ends_its_entries(
    here: Deployment, key: str
) -> None:
    """The worker discards it: its arguments are of a class that it does not know."""
    queue = f"aside-{key}"
    call = entered(here, "entered", key, queue=queue)
    with here.app.connection_for_write() as connection:
        with connection.SimpleQueue(queue) as messages:
            message = messages.get(timeout=10)
            message.ack()
        connection.Producer().publish(
            b"[[",
            routing_key=queue,
            headers=message.headers,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
        )

    here.app.control.add_consumer(queue, reply=True, limit=1)

    until_ended(here, key, "entered", call)
    here.app.control.cancel_consumer(queue, reply=True, limit=1)


@pytest.mark.long
def test_call_that_rabbitmq_discards_loses_its_place(
    on_rabbitmq: Deployment, key: str
) -> None:
    """No worker has an expired message: the place ends 10 s after its call expires."""
    call = entered(on_rabbitmq, "entered", key, queue=f"aside-{key}", expires=1)

    until_ended(on_rabbitmq, key, "entered", call)


def test_place_of_a_refused_call_stays_while_it_waits(
    here: Deployment, key: str
) -> None:
    """Its countdown ends again and again, and its worker keeps the place."""
    holder = here.begin("placed", key)
    call = here.send("placed", key)
    until(lambda: found(here, key, "placed", call.id), what="its place")

    here.send("plain-clock", key, countdown=3).get(timeout=60)

    assert found(here, key, "placed", call.id) == {"place"}
    here.finish(key, holder, call)
    until_ended(here, key, "placed", call)


@tasks
def test_expiry_of_a_refused_call_ends_all_entries(
    here: Deployment, key: str, name: str
) -> None:
    """Its worker discards it when its countdown ends."""
    holder = here.begin("job", key)
    call = entered(here, name, key, expires=4)

    until_ended(here, key, name, call)
    here.finish(key, holder)


@pytest.mark.parametrize("name", ["entered-briefly"])
def test_purge_of_the_queue_ends_all_entries_in_time(
    here: Deployment, key: str, name: str
) -> None:
    """No process sees it: they end with ``claim_ttl``, 2 s here."""
    queue = f"aside-{key}"
    call = here.send(name, key, queue=queue)

    with here.app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge(queue) == 1

    until_ended(here, key, name, call)
    later = here.send(name, key)
    assert later.get(timeout=60) == later.id != call.id


def test_skip_ends_the_claim_of_a_refused_call(here: Deployment, key: str) -> None:
    """It is published, and another call has the lock when it is to run."""
    holder = here.begin("job", key)
    call = here.send("skipped", key)

    until_ended(here, key, "skipped", call)
    until(lambda: call.state == states.REVOKED, what="the end of the call")
    here.finish(key, holder)


@pytest.mark.long
def test_revocation_without_workers_leaves_a_call_that_runs(
    deploy: Deploy, key: str
) -> None:
    """Workers keep what is revoked in their memory: none has heard of it."""
    with deploy(concurrency=1) as here:
        here.kill_worker(key)
        call = entered(here, "entered", key)
        call.revoke()

        here.start_worker()

        until_ended(here, key, "entered", call)
        assert call.get(timeout=60) == call.id
