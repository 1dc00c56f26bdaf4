"""Publishers give a call its place in the line of its key, with ``in_order``."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery import Celery
from celery.signals import before_task_publish
from kombu.exceptions import EncodeError

from celery_redlock import singleton_task
from celery_redlock.app.runtime import runtime_of
from celery_redlock.errors import QuorumUnreachable
from tests.unit.tasks.support import HOUR, KEY, Worker, run_until_stopped


def places(worker: Worker) -> list[str]:
    """Return the calls in the line, as each node says, in their order."""
    found = []
    for node in worker.nodes.nodes:
        line = node.memory.redis.zset(f"redlock:backlog:{KEY}".encode())
        found.append([member.decode() for member in line])
    assert all(one == found[0] for one in found)
    return found[0]


def ordered(worker: Worker, **options: Any) -> Any:
    """Return a task whose calls run in order."""
    options = {"on_conflict": "retry", "in_order": True, **options}

    @worker.task(**options)
    def job(number: int) -> int:
        return number

    return job


def test_published_calls_have_places_in_their_order(worker: Worker) -> None:
    """The numbers are in their messages."""
    task = ordered(worker)

    calls = [task.delay(number) for number in range(3)]

    assert places(worker) == [call.id for call in calls]
    worker.collect()
    numbers = [headers["redlock"]["published"] for headers, _ in worker.published]
    assert numbers == sorted({*numbers})
    assert worker.published[0][0]["redlock"]["line"] == (KEY, HOUR)


def test_call_runs_when_all_before_it_have_run(worker: Worker) -> None:
    """Out of turn it returns to its queue; a run gives up its place."""
    task = ordered(worker)
    first, second = task.delay(1), task.delay(2)

    assert worker.run(task, 2, id=second.id).state == "RETRY"
    assert worker.run(task, 1, id=first.id).state == "SUCCESS"
    assert worker.run(task, 2, id=second.id).state == "SUCCESS"
    assert places(worker) == []


def test_call_that_returns_after_a_lost_lock_is_first_again(worker: Worker) -> None:
    """Those that were published after it wait for it, as after a killed process."""
    worker.use_real_time(ttl=30)

    @worker.task(on_conflict="retry", in_order=True, on_lock_lost="retry")
    def job(number: int) -> int:
        if number == 1:
            run_until_stopped(lambda: runtime_of(worker.app).watchdog.expire(KEY))
        return number

    first, second = job.delay(1), job.delay(2)

    assert worker.run(job, 1, id=first.id).state == "RETRY"
    assert places(worker) == [first.id, second.id]


def test_retry_after_a_refusal_keeps_its_number(worker: Worker) -> None:
    """``autoretry_for`` sends it again before its body has begun: it is no newer."""
    task = ordered(worker, on_backend_error="raise", autoretry_for=(QuorumUnreachable,))
    first = task.delay(1)
    worker.nodes.partition(0, 1, 2)

    assert worker.run(task, 1, id=first.id).state == "RETRY"

    numbers = [headers["redlock"]["published"] for headers, _ in worker.published]
    assert numbers == [numbers[0]] * 2


def test_call_that_cannot_learn_its_place_does_not_run(worker: Worker) -> None:
    """Nodes that vote on its lock need not have told who is before it: an outage."""
    task = ordered(worker, on_backend_error="raise")
    task.delay(1)
    second = task.delay(2)
    for node in worker.nodes.nodes:
        node.memory.redis.set(f"redlock:backlog:{KEY}".encode(), b"theirs")

    run = worker.run(task, 2, id=second.id)

    assert run.state == "FAILURE"
    assert isinstance(run.result, QuorumUnreachable)


def test_refusal_names_the_call_that_is_first(worker: Worker) -> None:
    """Its result says which one it waits for."""
    task = ordered(worker)
    first, second = task.delay(1), task.delay(2)

    refused = worker.run(task, 2, id=second.id).result

    assert f"{first.id} was published before it" in str(refused)


def test_explanation_says_that_others_are_before_it(worker: Worker) -> None:
    """To explain a call does not put it into the line."""
    task = ordered(worker)
    assert task.explain(1).would_run
    first = task.delay(1)

    explained = task.explain(2)

    assert not explained.would_run
    assert "(1 of 2 that wait are before it)" in str(explained.execute)
    assert places(worker) == [first.id]


@pytest.mark.parametrize("options", [{"countdown": 5}, {"eta": "2030-01-01T00:00:00Z"}])
def test_call_that_does_not_run_now_holds_up_no_other(
    worker: Worker, options: dict[str, Any]
) -> None:
    """It gets a place when a worker asks for its lock."""
    ordered(worker).apply_async((1,), **options)

    assert places(worker) == []


def test_place_ends_soon_after_its_call_expires(worker: Worker) -> None:
    """RabbitMQ discards an expired message itself, and no process sees that."""
    ordered(worker).apply_async((1,), expires=5)

    worker.collect()
    key, margin = worker.published[0][0]["redlock"]["line"]
    assert (key, 14 < margin <= 15) == (KEY, True)


def test_place_of_a_refused_call_ends_soon_after_it_expires(worker: Worker) -> None:
    """Its next copy expires, too, and no worker may have received it by then."""
    task = ordered(worker)
    call = task.apply_async((1,), expires=60)
    worker.collect()
    expires = worker.published[0][0]["expires"]

    worker.refuse(task, 1, id=call.id, expires=expires)

    key, margin = worker.published[1][0]["redlock"]["line"]
    assert (key, 60 < margin <= 70) == (KEY, True)
    assert worker.published[1][0]["expires"] == expires


def test_other_tasks_have_no_places(worker: Worker) -> None:
    """It would be a request for nothing."""
    ordered(worker, in_order=False).delay(1)

    assert places(worker) == []


def test_call_that_cannot_be_sent_has_no_place(worker: Worker) -> None:
    """Its publisher gets the error."""
    found: list[str] = []

    def look(**_: Any) -> None:
        found.extend(places(worker))

    before_task_publish.connect(look)
    with pytest.raises(EncodeError):
        ordered(worker).delay(object())

    assert (len(found), places(worker)) == (1, [])


def test_claimed_call_has_a_place_too(worker: Worker) -> None:
    """The claim and the place belong to the same message."""
    task = ordered(worker, unique_while="queued")

    first = task.delay(1)
    assert task.delay(1).id == first.id

    assert places(worker) == [first.id]
    worker.collect()
    assert worker.published[0][0]["redlock"]["claim"] == KEY
    assert worker.run(task, 1, id=first.id).state == "SUCCESS"


def test_call_is_published_without_nodes(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says that it has no place: a later one may run before it."""
    worker.nodes.partition(0, 1, 2)

    with caplog.at_level(logging.WARNING):
        sent = ordered(worker).delay(1)

    assert worker.messages() == [sent.id]
    assert "too few nodes answered" in caplog.text
    assert "held back" not in caplog.text  # it is the first line


def test_call_that_cannot_be_sent_has_its_own_error_where_no_nodes_are_set() -> None:
    """It has no place to leave; the setting that is missing is not the reason."""
    app = Celery("bare", broker="memory://", set_as_current=False)

    @singleton_task(app=app, shared=False, key="k", on_conflict="retry", in_order=True)
    def job(number: object) -> None:
        """Do nothing."""

    with pytest.raises(EncodeError):
        job.delay(object())
