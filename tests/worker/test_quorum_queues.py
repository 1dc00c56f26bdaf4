"""Calls that come back to quorum queues of a real RabbitMQ, which delays them itself.

Celery publishes a call with a countdown to exchanges that delay it by whole seconds,
and refuses a countdown below one second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import states, uuid
from celery.result import AsyncResult

from celery_redlock import DuplicateTask
from tests.harness.deployment import Deploy, Deployment, Site
from tests.harness.lock_nodes import LockNodes
from tests.harness.servers import RabbitMQ
from tests.harness.waiting import until

pytestmark = pytest.mark.long  # a RabbitMQ takes ten seconds to start

PROCESSES = 4  # of the worker
NOT_THE_BROKER = "could not be republished"


def on_quorum_queues(server: RabbitMQ, exchange_type: str) -> dict[str, Any]:
    """Return settings with which each queue of the app is a quorum queue."""
    queue = f"quorum-{exchange_type}"
    return {
        "broker_url": server.url,
        "broker_transport_options": {"confirm_publish": True},
        "task_default_queue": queue,
        "task_default_exchange": queue,
        "task_default_routing_key": queue,
        "task_default_queue_type": "quorum",
        "task_default_exchange_type": exchange_type,
        "task_create_missing_queue_type": "quorum",
        "task_create_missing_queue_exchange_type": exchange_type,
    }


@pytest.fixture(scope="module", params=["topic", "direct"])
def here(
    request: pytest.FixtureRequest,
    rabbitmq: RabbitMQ,
    site: Site,
    frail_nodes: LockNodes,
) -> Iterator[Deployment]:
    """Give a worker on quorum queues, behind either type of exchange.

    Celery lets only messages to a topic exchange wait in the broker. Others wait in
    the worker, whose prefetch count stays as it is.
    """
    settings = on_quorum_queues(rabbitmq, request.param)
    with site.deploy(frail_nodes, settings=settings) as deployment:
        yield deployment
        assert NOT_THE_BROKER not in deployment.logs()


def until_waiting(here: Deployment, *results: AsyncResult) -> None:
    """Wait until these calls have been refused and published again."""
    for result in results:
        until(lambda: result.state in (states.RETRY, states.REVOKED), 20)  # noqa: B023


def test_retry_comes_back_until_the_lock_is_free(here: Deployment, key: str) -> None:
    """A countdown of 0.3 s is one that the broker does not take as it is."""
    first = here.begin("job-retry", key)
    second = here.send("job-retry", key)

    here.until_received(second.id, times=7)
    here.finish(key, first, second)

    assert here.stage.overlaps(key) == []
    assert len(here.stage.runs(key)) == 2


@pytest.mark.parametrize(("name", "runs"), [("buffered", 3), ("buffered-first", 1)])
def test_buffer_one_lets_one_follow(
    here: Deployment, key: str, name: str, runs: int
) -> None:
    """The duplicates go back to the queue, and one of them runs."""
    first = here.begin(name, key, 0)
    others = {}
    for number in (1, 2, 3):
        others[number] = here.send(name, key, number)
        # A worker can get a call before the nodes hear from its publisher, and then
        # orders it by the publisher's clock.
        until_waiting(here, others[number])
    here.stage.open(key)

    assert first.get(timeout=60) == 0
    assert others.pop(runs).get(timeout=60) == runs
    for other in others.values():
        with pytest.raises(DuplicateTask, match="runs instead"):
            other.get(timeout=60)
    assert here.stage.overlaps(key) == []


def test_cancel_running_goes_back_to_the_queue(here: Deployment, key: str) -> None:
    """A body that does not end at once lets the newcomer wait in its queue."""
    here.begin("replacing-deaf", key, 1)
    second = here.send("replacing-deaf", key, 2)

    here.until_received(second.id, times=3)
    for number in (1, 2):
        here.stage.open(f"{key}-{number}")

    assert second.get(timeout=60) == 2
    assert here.stage.overlaps(key) == []


def test_waiting_calls_leave_their_processes(here: Deployment, key: str) -> None:
    """As many calls as processes wait in the queue, and another task is answered."""
    holders = [here.begin("buffered", f"{key}-{number}", 0) for number in range(2)]
    waiting = [
        here.send("buffered", f"{key}-{number % 2}", number) for number in range(4)
    ]
    until_waiting(here, *waiting)

    other = here.send("quick", f"{key}-other")

    assert other.get(timeout=60) == other.id
    for number in range(2):
        here.stage.open(f"{key}-{number}")
    assert [result.get(timeout=60) for result in holders] == [0, 0]
    until(lambda: all(result.ready() for result in waiting), 40)


def test_waiting_calls_leave_room_in_the_prefetch(here: Deployment, key: str) -> None:
    """As many calls wait as the worker takes messages, and another task is answered."""
    taken = PROCESSES * here.app.conf.worker_prefetch_multiplier
    first = here.begin("job-retry", key)
    waiting = [here.send("job-retry", key) for _ in range(taken)]
    for call in waiting:
        here.until_received(call.id, times=2)

    other = here.send("quick", f"{key}-other")

    assert other.get(timeout=60) == other.id
    here.finish(key, first, *waiting)


def test_copy_of_a_running_call_waits_for_its_end(here: Deployment, key: str) -> None:
    """A second message with the id of a running call goes back, and is dropped."""
    task_id = uuid()
    first = here.begin("job", key, task_id=task_id)
    here.send("job", key, task_id=task_id)

    here.until_received(task_id, times=3)
    here.finish(key, first)

    until(lambda: f"{task_id}] has finished already" in here.logs(), 20)
    assert len(here.stage.runs(key)) == 1


@pytest.mark.several_nodes
def test_split_votes_run_in_the_end(here: Deployment, key: str) -> None:
    """Where no majority names a holder, the call goes back until it runs."""
    here.nodes.split(key, seconds=3)

    here.finish(key, here.send("job", key))

    assert len(here.stage.runs(key)) == 1


def test_calls_run_in_the_order_of_publishing(here: Deployment, key: str) -> None:
    """``in_order``: the place of a call is with its number, wherever it waits."""
    calls = [here.send("ordered-storm", key, 0.01) for _ in range(6)]

    for call in calls:
        assert call.get(timeout=60) == call.id

    assert [run.task_id for run in here.stage.runs(key)] == [call.id for call in calls]


def test_outage_is_waited_out_in_the_queue(here: Deployment, key: str) -> None:
    """Without a majority the call goes back, and runs when the nodes answer again."""
    with here.nodes.majority_paused():
        result = here.send("quick", key)
        until(lambda: result.state == states.RETRY, 20)
        assert here.stage.runs(key) == []

    assert result.get(timeout=60) == result.id


def test_lost_call_runs_again(here: Deployment, key: str) -> None:
    """``on_lock_lost="retry"`` publishes the call again after 0.3 s."""
    first = here.begin("lost-retry", key)
    here.nodes.steal(key, seconds=30)
    until(lambda: first.state == states.RETRY, 20)
    here.nodes.undo_steal(key)

    until(lambda: len(here.stage.runs(key)) == 2, 20)
    here.finish(key, first)


@pytest.mark.parametrize("name", ["one-at-all", "one-queued"])
def test_claim_keeps_a_duplicate_out(here: Deployment, key: str, name: str) -> None:
    """``unique_while``: a call with a countdown is in the queue of the broker."""
    with here.worker_paused():
        first = here.send(name, key, countdown=1)
        assert here.send(name, key).id == first.id

    here.until_running(key, first.id)
    here.finish(key, first)
    assert len(here.stage.runs(key)) == 1


def test_republished_call_returns_to_its_own_queue(
    here: Deployment, deploy: Deploy, rabbitmq: RabbitMQ, key: str
) -> None:
    """Celery would publish a call that is delayed to the default queue."""
    exchange_type = here.app.conf.task_default_exchange_type
    queue, settings = f"own-{exchange_type}", on_quorum_queues(rabbitmq, exchange_type)
    workers = deploy(here.nodes, options=["-Q", queue], settings=settings)
    first = workers.send("job-retry", key, queue=queue)
    workers.until_running(key, first.id)

    second = workers.send("job-retry", key, queue=queue)

    workers.until_received(second.id, times=4)
    workers.finish(key, first, second)
    assert second.id not in here.logs()
