"""The cost of the layer between Celery and the lock service, in the worker process.

Celery's tracer runs a no-op task in this process, as in a worker. In turn with it, the
tracer runs the same function as a plain task, between an acquire and a release on the
same lock service. The difference is the layer: header, key, admission, renewal,
interrupts, signals. One node keeps the share of the network small.
"""

from __future__ import annotations

import itertools
import statistics
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.app.trace import build_tracer, setup_worker_optimizations
from kombu.utils.uuid import uuid

from benchmarks.runner import PATIENT, Contender, interleave
from celery_redlock import runtime_of, singleton_task
from celery_redlock.devnodes import DevNodes
from celery_redlock.task.header import mint

if TYPE_CHECKING:
    from collections.abc import Callable

_numbers = itertools.count()


def measure(*, quick: bool) -> dict[str, Any]:
    """Return the CPU time of a call with the layer and without, and the difference."""
    rounds, count = (2, 40) if quick else (31, 300)
    with DevNodes(1) as nodes:
        app = Celery("layer", broker="memory://", set_as_current=False)
        app.conf.update(redlock_nodes=nodes.urls, redlock_node_timeout=PATIENT)
        plain, ours = _tracers(app)
        redlock = runtime_of(app).redlock
        redlock.check()

        def with_layer(cycles: int) -> None:
            for _ in range(cycles):
                ours(*_message())

        def without_layer(cycles: int) -> None:
            for _ in range(cycles):
                lease = redlock.acquire(f"layer:{next(_numbers)}")
                plain(*_message())
                redlock.release(lease)

        contenders = [
            Contender("with", 1, with_layer, count),
            Contender("without", 1, without_layer, count),
        ]
        costs = interleave(contenders, rounds=rounds)
        runtime_of(app).stop()
        redlock.close()
    pairs = list(zip(costs["with"], costs["without"], strict=True))
    return {
        "with_us": statistics.median(ours.cpu for ours, _ in pairs),
        "without_us": statistics.median(plain.cpu for _, plain in pairs),
        "layer_us": statistics.median(ours.cpu - plain.cpu for ours, plain in pairs),
    }


def _tracers(app: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return what runs the plain task and ours, as a worker does."""
    app.task(_nothing, name="plain")
    singleton_task(app=app, name="ours")(_nothing)
    app.finalize()
    setup_worker_optimizations(app)
    plain, ours = (
        build_tracer(name, app.tasks[name], app=app) for name in ("plain", "ours")
    )
    return plain, ours


def _nothing(number: int) -> int:
    """Do nothing."""
    return number


def _message() -> tuple[str, list[int], dict[str, Any], dict[str, Any]]:
    """Return a call as it comes from the main process of a worker."""
    task_id, number = uuid(), next(_numbers)
    request: dict[str, Any] = {
        "id": task_id,
        "root_id": task_id,
        "correlation_id": task_id,
        "args": [number],
        "kwargs": {},
        "retries": 0,
        "hostname": "benchmark",
        "delivery_info": {"routing_key": "celery", "redelivered": False},
        "is_eager": False,
        "ignore_result": True,
    }
    mint(request)
    return task_id, [number], {}, request
