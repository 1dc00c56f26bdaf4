"""Run a task with Celery's tracer in this process, as a worker does."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery import states
from celery.app.trace import build_tracer
from kombu.utils.uuid import uuid

from celery_redlock import current_lease, singleton_task
from celery_redlock.core.lease import Holder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes

__all__ = [
    "HOUR",
    "JUST_NOW",
    "Run",
    "Worker",
    "buffered",
    "claims",
    "held",
    "leased_job",
    "messages",
    "unique_job",
]

HOUR = 3600.0
JUST_NOW = 2.0  # seconds that a slow machine may take for a few lines


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


@dataclass
class Worker:
    """A worker of an app, which collects the messages that its tasks publish.

    Attributes:
        app: The app.
        published: The headers and arguments of each published message, in order.
    """

    app: Celery
    published: list[tuple[dict[str, Any], Any]] = field(default_factory=list)

    def run(self, task: Any, *args: Any, **request: Any) -> Run:
        """Run a task with these arguments; ``request`` is the message's headers."""
        task_id = request.setdefault("id", uuid())
        queue = self.app.conf.task_default_queue
        delivery = {"exchange": "", "routing_key": queue, "redelivered": False}
        request = {"delivery_info": delivery, "is_eager": False, **request}
        tracer = build_tracer(task.name, task, app=self.app)
        outcome = tracer(task_id, list(args), {}, request)
        meta = task.backend.get_task_meta(task_id, cache=False)
        self.collect()
        state = outcome.info.state if outcome.info else states.SUCCESS
        return Run(task_id, state, meta["status"], meta["result"])

    def redeliver(self, task: Any, *args: Any, **request: Any) -> Run:
        """Run a task whose message the broker delivers again."""
        queue = self.app.conf.task_default_queue
        delivery = {"exchange": "", "routing_key": queue, "redelivered": True}
        return self.run(task, *args, delivery_info=delivery, **request)

    def collect(self) -> None:
        """Move the messages of the queue to `published`, as ``run`` does."""
        self.published += _taken(self.app)


def _taken(app: Celery) -> list[tuple[dict[str, Any], Any]]:
    """Remove all messages from the queue; return their headers and arguments."""
    taken = []
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(app.conf.task_default_queue)
        while queue.qsize():
            message = queue.get(block=False)
            message.ack()
            taken.append((message.headers, message.payload))
        queue.close()
    return taken


def messages(app: Celery) -> list[str]:
    """Remove all messages from the queue, and return their task ids in order."""
    return [headers["id"] for headers, _ in _taken(app)]


# -- Tasks, claims and another holder ----------------------------------------------


def leased_job(app: Celery, **options: Any) -> Any:
    """Return a task whose result tells whether it has a lease."""

    @singleton_task(app=app, shared=False, name="job", key="k", **options)
    def job(_: Any = None) -> bool:
        return current_lease() is not None

    return job


def buffered(app: Celery, **options: Any) -> Any:
    """Return a task whose calls wait for each other, one at a time."""
    options = {"name": "job", "on_conflict": "buffer_one", **options}

    @singleton_task(app=app, shared=False, key="k", **options)
    def job(number: int = 0) -> int:
        return number

    return job


def unique_job(app: Celery, while_: str = "queued", **options: Any) -> Any:
    """Return a task that is unique while it waits."""

    @singleton_task(
        app=app, shared=False, name="job", key="k:{n}", unique_while=while_, **options
    )
    def job(n: int = 0) -> int:
        return n

    return job


def claims(nodes: FakeNodes, key: str = "k:0", kind: str = "claim") -> dict[str, float]:
    """Return the jobs that have the claim on any node, with the seconds left."""
    name, found = f"redlock:{kind}:{key}".encode(), {}
    for node in nodes.nodes:
        redis = node.memory.redis
        redis.look_at_clock()
        value = redis.get(name)
        if value is not None:
            found[value.split(b"\n")[0].decode()] = redis.pttl(name) / 1000
    return found


@contextmanager
def held(rival: Redlock, task_id: str = "other-id", key: str = "k") -> Iterator[None]:
    """Let another execution hold the lock of the task."""
    lease = rival.acquire(key, holder=Holder.here(task="job", task_id=task_id))
    yield
    rival.release(lease)
