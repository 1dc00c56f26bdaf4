"""Run a task with Celery's tracer in this process, as a worker does."""

from __future__ import annotations

import functools
import gc
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from celery import Celery, states
from celery.app.trace import build_tracer
from kombu.message import Message
from kombu.serialization import dumps
from kombu.utils.uuid import uuid

from celery_redlock import current_lease, singleton_task
from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.locks.lease import Holder
from celery_redlock.locks.redlock import Redlock
from celery_redlock.testing import FakeNodes

HOUR = 3600.0
LONG = 10.0  # seconds: longer than any step of these tests takes
KEY = "the-key"


@dataclass
class Run:
    """The outcome of a run.

    Attributes:
        id: The task id.
        state: The tracer's state; IGNORED if the tracer stores no result.
        stored: The state in the result backend.
        result: The result in the result backend.
    """

    id: str
    state: str
    stored: str
    result: Any


@dataclass(eq=False)
class Worker:
    """A worker of an app, which collects the messages that its tasks publish.

    Attributes:
        app: The app.
        nodes: The nodes of its locks.
        ttl: Of its locks, in seconds.
        call_id: A task id that no other test uses: results in memory are shared.
        published: The headers and arguments of each published message, in order.
        options: Of its command line.
    """

    app: Celery
    nodes: FakeNodes
    ttl: float = 10.0
    call_id: str = field(default_factory=lambda: f"call-{secrets.token_hex(4)}")
    published: list[tuple[dict[str, Any], Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    _ours: dict[str, Any] = field(default_factory=dict)  # headers, by task id

    def run(self, task: Any, *args: Any, **request: Any) -> Run:
        """Run a task with these arguments; ``request`` is the message's headers.

        Among them may be ``kwargs``, of the call. The headers of the package are those
        of the last message with this id, unless they are given.
        """
        task_id = request.setdefault("id", uuid())
        kwargs = dict(request.pop("kwargs", {}))
        self.collect()
        if task_id in self._ours:
            request.setdefault("redlock", self._ours[task_id])
        queue = self.app.conf.task_default_queue
        delivery = {"exchange": "", "routing_key": queue, "redelivered": False}
        request = {"delivery_info": delivery, "is_eager": False, **request}
        tracer = build_tracer(task.name, task, app=self.app)
        outcome = tracer(task_id, list(args), kwargs, request)
        meta = task.backend.get_task_meta(task_id, cache=False)
        self.collect()
        state = outcome.info.state if outcome.info else states.SUCCESS
        return Run(task_id, state, meta["status"], meta["result"])

    def redeliver(self, task: Any, *args: Any, **request: Any) -> Run:
        """Run a task whose message the broker delivers again."""
        queue = self.app.conf.task_default_queue
        delivery = {"exchange": "", "routing_key": queue, "redelivered": True}
        return self.run(task, *args, delivery_info=delivery, **request)

    def refuse(self, task: Any, *args: Any, **request: Any) -> Run:
        """Run a task while another call holds its lock."""
        with self.held():
            return self.run(task, *args, **request)

    def collect(self) -> None:
        """Move the messages of the queue to `published`, as ``run`` does."""
        self.published += self._taken()

    def messages(self) -> list[str]:
        """Remove all messages from the queue, and return their task ids in order."""
        return [headers["id"] for headers, _ in self._taken()]

    def _taken(self) -> list[tuple[dict[str, Any], Any]]:
        """Remove all messages from the queue; return their headers and arguments."""
        taken = []
        with self.app.connection_for_read() as connection:
            queue = connection.SimpleQueue(self.app.conf.task_default_queue)
            while queue.qsize():
                message = queue.get(block=False)
                message.ack()
                if "redlock" in message.headers:
                    self._ours[message.headers["id"]] = message.headers["redlock"]
                taken.append((message.headers, message.payload))
            queue.close()
        return taken

    # -- Tasks -----------------------------------------------------------------------

    def task(self, **options: Any) -> Any:
        """Return the decorator of a task with these options, by default on one key."""
        options = {"name": "job", "key": KEY, "ttl": self.ttl, **options}
        return singleton_task(app=self.app, shared=False, **options)

    def leased_job(self, **options: Any) -> Any:
        """Return a task whose result tells whether it has a lease."""

        def job(_: Any = None) -> bool:
            return current_lease() is not None

        return self.task(**options)(job)

    def buffered(self, **options: Any) -> Any:
        """Return a task whose calls wait for each other, one at a time."""

        def job(number: int = 0) -> int:
            return number

        return self.task(**{"on_conflict": "buffer_one", **options})(job)

    def unique_job(self, while_: str = "queued", **options: Any) -> Any:
        """Return a task that is unique while it waits."""

        def job(n: int = 0) -> int:
            return n

        return self.task(key="k:{n}", unique_while=while_, **options)(job)

    # -- Other processes -------------------------------------------------------------

    @functools.cached_property
    def rival(self) -> Redlock:
        """The lock service of another process on the same nodes."""
        assert runtime_of(self.app).redlock.labels == self.nodes.labels
        return self.nodes.another_client().redlock(ttl=self.ttl)

    @contextmanager
    def held(self, task_id: str = "other-id", key: str = KEY) -> Iterator[None]:
        """Let another execution hold the lock of the task."""
        holder = Holder.here(task="job", task_id=task_id)
        lease = self.rival.acquire(key, holder=holder)
        yield
        self.rival.release(lease)

    def claims(self, key: str = "k:0", kind: str = "claim") -> dict[str, float]:
        """Return the jobs that have the claim on any node, with the seconds left."""
        name, found = f"redlock:{kind}:{key}".encode(), {}
        for node in self.nodes.nodes:
            redis = node.memory.redis
            redis.look_at_clock()
            value = redis.get(name)
            if value is not None:
                found[value.split(b"\n")[0].decode()] = redis.pttl(name) / 1000
        return found

    def announced(self, key: str = KEY, task: str = "job") -> list[str]:
        """Return the calls of a task that wait, as each node says, in their order."""
        name = f"redlock:order:{key}:{task}".encode()
        waiting = 1e12  # numbers of calls that wait are above, of others below
        found = []
        for node in self.nodes.nodes:
            scores = node.memory.redis.zset(name)
            found.append([m.decode() for m, score in scores.items() if score > waiting])
        assert all(one == found[0] for one in found)
        return found[0]

    def use_real_time(self, ttl: float) -> None:
        """Use nodes in real time, so that the watchdog renews as in production."""
        self.ttl, self.nodes = ttl, FakeNodes(3, clock=SYSTEM_CLOCK)
        runtime_of(self.app).use(self.nodes.redlock(ttl=ttl))


def message_of(sent: Any, **delivery: Any) -> Message:
    """Return a message as a worker's main process receives it."""
    content_type, encoding, body = dumps(sent.body, "json")  # type: ignore[no-untyped-call]
    return Message(  # type: ignore[no-untyped-call]
        body=body,
        content_type=content_type,
        content_encoding=encoding,
        headers=sent.headers,
        properties=sent.properties,
        delivery_info={"exchange": "", "routing_key": "q", **delivery},
    )


@contextmanager
def open_app(nodes: FakeNodes, **options: Any) -> Iterator[Celery]:
    """Give an app in memory whose locks are on these nodes."""
    app = Celery("unit", set_as_current=False, **options)
    app.conf.update(
        broker_url="memory://",
        result_backend="cache+memory://",
        task_default_queue=f"unit-{secrets.token_hex(4)}",
        redlock_nodes=nodes.urls,
        redlock_ttl=10,
    )
    runtime_of(app).use(nodes.redlock(ttl=10.0))
    yield app
    runtime_of(app).stop()
    app.close()


def run_until_stopped(first: Callable[[], object] = lambda: None) -> None:
    """Do this first, and run on in small steps until an exception stops it.

    Without the collector: CPython ignores exceptions in finalisers and in callbacks of
    weak references, as those of earlier tests, also one that it has just thrown there.
    """
    gc.disable()
    try:
        first()
        end = SYSTEM_CLOCK.monotonic() + LONG
        while SYSTEM_CLOCK.monotonic() < end:
            SYSTEM_CLOCK.sleep(0.005)
    finally:
        gc.enable()
    pytest.fail("nothing has stopped the body")
