"""The app of the worker of ``processes``: one task in five ways.

*Two PINGs* is a plain task that asks all nodes twice for nothing, over sockets of its
own: what a lock on these nodes costs at the least. *1 ms busy* is a plain task that
uses the processor for a millisecond: what a child that is slower costs the others.
"""

from __future__ import annotations

import functools
import os
import time
from urllib.parse import urlsplit

from celery import Celery
from celery_singleton import Singleton

from benchmarks.contenders import RawSockets
from celery_redlock import singleton_task
from celery_redlock.basics.resp import pack

BROKER, *NODES = os.environ["BENCHMARK_SERVERS"].split()

app = Celery("processes", broker=BROKER, backend=BROKER)
app.conf.update(
    redlock_nodes=NODES,
    redlock_node_timeout=1.0,
    singleton_backend_url=NODES[0],
    singleton_lock_expiry=60,
    worker_prefetch_multiplier=16,
)


def nothing(number: int) -> int:
    """Do nothing."""
    return number


@functools.cache
def _sockets() -> RawSockets:
    return RawSockets(urlsplit(url).port or 0 for url in NODES)


def ping(number: int) -> int:
    """Send two PINGs to all nodes, and wait for a majority each time."""
    for _ in range(2):
        _sockets().ask(pack(("PING",)))
    return number


def busy(number: int) -> int:
    """Use the processor for a millisecond."""
    until = time.process_time() + 0.001
    while time.process_time() < until:
        pass
    return number


TASKS = {
    "plain Celery": app.task(nothing, name="plain"),
    "plain Celery, two PINGs": app.task(ping, name="ping"),
    "plain Celery, 1 ms busy": app.task(busy, name="busy"),
    "celery-singleton": app.task(nothing, name="singleton", base=Singleton),
    "celery-redlock": singleton_task(app=app, name="ours")(nothing),
}
