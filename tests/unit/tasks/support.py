"""Run a task as a worker does, without one: Celery's tracer in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery import states
from celery.app.trace import build_tracer
from kombu.utils.uuid import uuid

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Run", "Worker"]


@dataclass
class Run:
    """How a run ended.

    Attributes:
        id: Of the task.
        state: What the tracer says; IGNORED where the result was seen to.
        stored: The state in the result backend.
        result: What the result backend holds.
    """

    id: str
    state: str
    stored: str
    result: Any


@dataclass
class Worker:
    """Runs tasks of an app, and shows what they publish.

    Attributes:
        app: The app.
        published: The headers and arguments of what came to the queue, in order.
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
        """Take in what was published, as ``run`` does."""
        with self.app.connection_for_read() as connection:
            queue = connection.SimpleQueue(self.app.conf.task_default_queue)
            while queue.qsize():
                message = queue.get(block=False)
                message.ack()
                self.published.append((message.headers, message.payload))
            queue.close()
