"""The facts that the rules look at."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redlock.operations.inspect import NodeState
from celery_redlock.options.lock_options import LockOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.operations.inspect import NodeReport

__all__ = ["Case", "LockTask"]

# Seconds after which these brokers redeliver a message that is not acknowledged.
_VISIBILITY = {"redis": 3600.0, "rediss": 3600.0, "sqs": 1800.0}


class LockTask(NamedTuple):
    """A task that takes a lock.

    Attributes:
        task: The Celery task.
        options: Its options.
        ttl: Seconds that its lock lasts.
        limit: Seconds after which it is killed, or None.
    """

    task: Any
    options: LockOptions
    ttl: float
    limit: float | None


@dataclass(frozen=True, slots=True)
class Case:
    """A deployment as it was found, and the app that uses it.

    Attributes:
        redlock: The lock service whose settings the rules go by.
        reports: The report of each node, in node order.
        app: The Celery app, or None if there is none.
    """

    redlock: Redlock
    reports: Sequence[NodeReport]
    app: Any = None

    @property
    def voting(self) -> list[NodeReport]:
        """The nodes that vote; if several of them are one server, the first."""
        by_server = {report.status.run_id: report for report in reversed(self.reports)}
        votes = NodeState.VOTES
        return [r for r in by_server.values() if r.status.state is votes]

    @property
    def lock_tasks(self) -> list[LockTask]:
        """The app's tasks that take a lock, by name."""
        found = []
        tasks = self.app.tasks.values() if self.app else ()
        for task in sorted(tasks, key=lambda task: str(task.name)):
            options = getattr(task, "lock_options", None)
            if isinstance(options, LockOptions):
                ttl: Any = options.ttl  # resolved to seconds
                ttl = self.redlock.timing.ttl if ttl is None else float(ttl)
                limit = task.time_limit or self.app.conf.task_time_limit
                limit = None if limit is None else float(limit)
                found.append(LockTask(task, options, ttl, limit))
        return found

    @property
    def visibility_timeout(self) -> float:
        """Seconds after which the broker redelivers an unacknowledged message."""
        if not self.app:
            return math.inf
        conf = self.app.conf
        url = str(conf.broker_read_url or conf.broker_url or "")
        usual = _VISIBILITY.get(url.partition("://")[0].partition("+")[0])
        if usual is None:
            return math.inf
        options = conf.broker_transport_options or {}
        return float(options.get("visibility_timeout", usual))
