"""Deploys: workers of another version, and calls that wait in workers.

A worker in which a call waits may be killed. See the page about deploying.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from celery_redlock.operations.doctor.rule import (
    ERROR,
    NOTE,
    WARNING,
    Case,
    Finding,
    LockTask,
    rule,
)
from celery_redlock.options.broker import broker_errors, is_in_memory
from celery_redlock.policies import Retry, given_at

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from celery import Celery, Task

_SOON = 300.0  # seconds after which a call comes back without a remark
_REPLY_WITHIN = 1.0  # seconds
_COMPARED = {"lock_options": "lock options", "key_rule": "arguments or key"}
_HAS_NODES = " [lock_nodes="  # between the name of a task and the names of its nodes
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@rule(offline=True)
def kills(case: Case) -> Iterator[Finding]:
    """Find calls that come back late if the worker in which they wait is killed."""
    visible = case.visibility_timeout
    names = [it.task.name for it in case.lock_tasks if _waits_with_a_countdown(it)]
    if names and _SOON < visible < math.inf:
        yield Finding(
            "killed-while-waiting",
            NOTE,
            f"Duplicates of {', '.join(names)} wait with a countdown in a worker. If "
            f"it is killed, they come back after {visible:g} s (visibility_timeout).",
            "Stop workers with TERM: then these calls go back to the queue at once. A "
            'shorter broker_transport_options["visibility_timeout"] must be above the '
            "longest countdown, and with acks_late above the longest run. RabbitMQ "
            "delivers the calls again at once.",
        )


def _waits_with_a_countdown(it: LockTask) -> bool:
    kind: Any = given_at(it.options.on_conflict, "execute")
    return kind is not None and (kind is Retry or kind.registers)


@rule("Task")
def countdowns(it: LockTask, case: Case) -> Iterator[Finding]:
    """Find a ``retry_countdown`` that the visibility timeout makes shorter."""
    countdown: Any = it.options.retry_countdown or 0.0  # resolved to seconds
    longest = case.visibility_timeout / 2
    if countdown > longest:
        yield Finding(
            "countdown",
            NOTE,
            f"has a retry_countdown of {countdown:g} s, and its calls come back after "
            f"{longest:g} s, half of the visibility timeout: the broker would deliver "
            "a call that waits for longer once more",
            "Lower it, or raise "
            'broker_transport_options["visibility_timeout"] to more than twice of it.',
        )


# A worker that starts leaves this out: in a deploy each would ask all the others.
@rule(skipped_at_start=True)
def versions(case: Case) -> Iterator[Finding]:
    """Find running workers whose version of a task computes other keys, or differs."""
    differing: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    ours = {it.task.name: _described(it.task) for it in case.lock_tasks}
    told = told_by_workers(case.app, "registered", *_COMPARED) if ours else {}
    for worker, tasks in told.items():
        for text in tasks:
            name, _, described = text.partition(" [")
            theirs = _ADDRESS.sub("", described)
            for field, here in ours.get(name, {}).items():
                if f"{field}={here}" not in theirs:
                    differing[name, field, here].append(worker)
    for (name, field, here), workers in sorted(differing.items()):
        yield Finding(
            "other-version",
            NOTE,
            f"has other {_COMPARED[field]} in {', '.join(sorted(workers))} than here "
            f"({here})",
            "If a deploy goes on, let it end; else restart these workers. Runs of two "
            "versions whose keys differ may overlap.",
        ).of("Task", name)


def _described(task: Task) -> dict[str, str]:
    """Return the fields of a task that workers compare, as they tell them."""
    return {n: _ADDRESS.sub("", str(getattr(task, n))) for n in _COMPARED}


# A worker that starts leaves this out, as above.
@rule(skipped_at_start=True)
def nodes(case: Case) -> Iterator[Finding]:
    """Find running workers whose locks are on other nodes.

    Servers that no deployment has used know of no other one. So nothing but the workers
    can tell, over the broker, that there are two.
    """
    ours = frozenset(case.redlock.labels)
    differing: dict[frozenset[str], list[str]] = defaultdict(list)
    names = {it.task.name for it in case.lock_tasks}
    for worker, told in _nodes_of_workers(case.app, names).items() if names else ():
        for theirs in told - {ours}:
            differing[theirs].append(worker)
    for theirs, workers in sorted(differing.items(), key=lambda item: item[1]):
        severity, effect = WARNING, "nodes grant locks to the clients of one list only"
        if ours.isdisjoint(theirs):
            severity, effect = ERROR, "two may hold one lock"
        yield Finding(
            "other-nodes",
            severity,
            f"The locks of {', '.join(workers)} are on {', '.join(sorted(theirs))}, "
            f"and those of this app on {', '.join(sorted(ours))}: {effect}.",
            "Stop these workers, or give all clients one list. Move to other nodes "
            "with `celery -A proj redlock reconfigure`, before any client has the new "
            "list.",
        )


def workers_by_nodes(app: Celery, labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of the running workers that use these nodes, and of the others.

    One without lock tasks, of an earlier version, or that does not answer within a
    second is in neither list.
    """
    ours = {frozenset(labels)}
    these: list[str] = []
    others: list[str] = []
    for worker, told in _nodes_of_workers(app).items():
        (these if told == ours else others).append(worker)
    return these, others


def _nodes_of_workers(
    app: Celery, names: Container[str] | None = None
) -> dict[str, set[frozenset[str]]]:
    """Return the lists of nodes that each running worker has for its lock tasks.

    A worker tells the names of its nodes, which have no passwords: its answer goes over
    the broker.

    Args:
        app: The app that asks.
        names: The names of the tasks that count; all by default.
    """
    told: dict[str, set[frozenset[str]]] = {}
    replies = told_by_workers(app, "registered", "lock_nodes")
    for worker, tasks in sorted(replies.items()):
        for text in tasks:
            name, has_nodes, labels = text.removesuffix("]").partition(_HAS_NODES)
            if has_nodes and (names is None or name in names):
                told.setdefault(worker, set()).add(frozenset(labels.split()))
    return told


def told_by_workers(app: Celery, what: str, *arguments: str) -> dict[str, Any]:
    """Return the replies of the running workers to one of Celery's inquiries."""
    if is_in_memory(app):
        return {}
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0)
            inspect = app.control.inspect(connection=connection, timeout=_REPLY_WITHIN)
            found: dict[str, Any] = getattr(inspect, what)(*arguments) or {}
    except broker_errors(app):  # without a broker, no worker can be asked
        return {}
    return found
