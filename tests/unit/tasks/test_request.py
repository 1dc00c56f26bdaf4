"""The main process releases the lock of a dead child, and no other lock."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from billiard.einfo import ExceptionInfo
from celery.exceptions import Terminated, WorkerLostError
from celery.worker.request import create_request_cls
from kombu.message import Message
from kombu.serialization import dumps

from celery_redlock import singleton_task
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.lease import Holder
from celery_redlock.task.request import RedlockRequest, Skipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Celery

    from celery_redlock.core.redlock import Redlock

LONG = 10.0  # seconds: longer than any step of these tests takes


class Pool:
    """A pool with all that ``create_request_cls`` needs."""

    apply_async = None


class Eventer:
    """An event dispatcher that keeps its events."""

    enabled = True

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, kind: str, **fields: Any) -> None:
        """Keep an event."""
        self.sent.append((kind, fields))


@pytest.fixture
def eventer() -> Eventer:
    """Give an event dispatcher that keeps its events."""
    return Eventer()


@pytest.fixture
def received(
    app: Celery, eventer: Eventer, call_id: str
) -> Callable[..., RedlockRequest]:
    """Give a function that receives a message as a worker's main process does."""

    @singleton_task(app=app, shared=False, name="job", key="k")
    def job() -> None: ...

    def receive(**delivery: Any) -> RedlockRequest:
        task = app.tasks["job"]
        sent = app.amqp.task_protocols[2](call_id, "job", (), {}, expires=60)
        content_type, encoding, body = dumps(sent.body, "json")  # type: ignore[no-untyped-call]
        message = Message(  # type: ignore[no-untyped-call]
            body=body,
            content_type=content_type,
            content_encoding=encoding,
            headers=sent.headers,
            properties=sent.properties,
            delivery_info={"exchange": "", "routing_key": "q", **delivery},
        )
        made = create_request_cls(RedlockRequest, task, Pool(), "here", eventer)
        request = made(message, app=app, task=task, eventer=eventer)
        assert isinstance(request, RedlockRequest)
        return request

    return receive


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that lives until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def lock_as_child(request: RedlockRequest, rival: Redlock, pid: int) -> None:
    """Take the lock as the execution of this request in a child would."""
    base = request.request_dict["redlock"]["base"]
    request.worker_pid = pid
    rival.acquire("k", base=base, holder=Holder.here(task_id=str(request.id)))


def failure(error: BaseException) -> ExceptionInfo:
    """Return what the pool reports of an error."""
    try:
        raise error
    except type(error):
        return ExceptionInfo()


@pytest.mark.parametrize("error", [WorkerLostError("gone"), Terminated(9)])
def test_lock_of_a_dead_child_is_released_at_once(
    received: Callable[..., RedlockRequest],
    rival: Redlock,
    child: subprocess.Popen[bytes],
    error: Exception,
) -> None:
    """The lock of a lost child that is dead is released before any requeue."""
    request = received()
    lock_as_child(request, rival, child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, but not reaped

    request.on_failure(failure(error))

    assert rival.inspect("k").holder is None


def test_lock_of_a_living_child_is_released_when_it_has_died(
    received: Callable[..., RedlockRequest],
    rival: Redlock,
    child: subprocess.Popen[bytes],
) -> None:
    """A hard time limit is announced while the body still runs."""
    request = received()
    lock_as_child(request, rival, child.pid)

    request.on_timeout(soft=False, timeout=1)

    assert rival.inspect("k").holder is not None
    child.kill()
    end = SYSTEM_CLOCK.monotonic() + LONG
    while rival.inspect("k").holder is not None:
        assert SYSTEM_CLOCK.monotonic() < end


def test_lock_of_another_execution_is_left_alone(
    received: Callable[..., RedlockRequest],
    rival: Redlock,
    child: subprocess.Popen[bytes],
) -> None:
    """The base names one execution; the next run of the call has another base."""
    request = received()
    request.worker_pid = child.pid
    rival.acquire("k", holder=Holder.here(task_id=str(request.id)))
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    request.on_failure(failure(WorkerLostError("gone")))

    assert rival.inspect("k").holder is not None


def test_lock_of_an_ordinary_failure_is_the_childs_affair(
    received: Callable[..., RedlockRequest], rival: Redlock
) -> None:
    """After an error of the body, the child itself releases the lock."""
    request = received()
    lock_as_child(request, rival, os.getpid())

    request.on_failure(failure(ValueError("x")), return_ok=True)

    assert rival.inspect("k").holder is not None


def test_skip_sends_an_event_with_its_reasons(
    received: Callable[..., RedlockRequest], eventer: Eventer
) -> None:
    """Without the event Flower shows the duplicate as started for ever."""
    request = received()

    request.on_failure(failure(Skipped("why", {"key": "k", "holder": "who"})))

    (event,) = eventer.sent
    usual = {"terminated": False, "signum": None, "expired": False}
    assert event == (
        "task-revoked",
        {"uuid": request.id, "key": "k", "holder": "who", **usual},
    )
    assert str(Skipped("why", {})) == "why"


def test_redelivered_message_does_not_expire_here(
    received: Callable[..., RedlockRequest],
) -> None:
    """Its first copy may be running, so the task itself checks the expiry."""
    first, again = received(), received(redelivered=True)
    first.expires = again.expires = first.expires.replace(year=2000)

    assert first.maybe_expire()
    assert not again.maybe_expire()
