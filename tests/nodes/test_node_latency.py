"""The latency of the nodes, as the metrics tell it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from celery import Celery
from prometheus_client import CollectorRegistry as Registry

from celery_redlock import metrics, singleton_task
from celery_redlock.app.runtime import runtime_of
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.redlock import Redlock
from tests.harness.waiting import until
from tests.nodes.support import PATIENT

PAUSE = 0.2  # seconds; far longer than an acquire takes


class Counted:
    """A lock service whose nodes are observed."""

    def __init__(self, redlock: Redlock, registry: Registry) -> None:
        self.redlock = redlock
        self._registry = registry

    def value(self, name: str, node: int, **labels: str) -> float:
        """Return the value of a series of this node."""
        labels["node"] = self.redlock.transport.labels[node]
        return self._registry.get_sample_value(f"redlock_node_{name}", labels) or 0.0

    def granted(self, node: int) -> float:
        """Return how many grants of this node were read."""
        return self.value("answers_total", node, answer="granted")

    def timed(self, node: int) -> float:
        """Return how many of its answers were timed."""
        return self.value("latency_seconds_count", node)


@pytest.fixture
def counted(three_nodes: DevNodes, own_tasks: None) -> Iterator[Counted]:
    """Give the service of an app whose metrics are installed."""
    app = Celery("latency", set_as_current=False)
    app.conf.redlock_nodes = three_nodes.urls
    app.conf.redlock_node_timeout = PATIENT
    registry = Registry()
    installed = metrics.install(app, registry=registry)
    redlock = runtime_of(app).redlock
    redlock.check()

    @singleton_task(app=app)
    def job() -> None: ...

    with job.lock():  # nodes are observed from its first lock on
        pass
    while redlock.transport.has_unanswered:
        redlock.transport.drain()
    yield Counted(redlock, registry)
    installed.uninstall()
    redlock.close()
    app.close()


def test_answer_that_lay_unread_is_not_timed(
    counted: Counted, three_nodes: DevNodes
) -> None:
    """Two nodes are a majority, so the third answers while the process is idle."""
    redlock, last = counted.redlock, three_nodes.nodes[2]
    last.pause()
    lease = redlock.acquire("k")
    granted, timed = counted.granted(2), counted.timed(2)
    time.sleep(PAUSE)
    last.resume()
    lock = redlock.keys.lock("k")
    until(lambda: last.command("EXISTS", lock), what="the lock on the last node")

    redlock.transport.drain()

    assert counted.granted(2) == granted + 1
    assert counted.timed(2) == timed
    redlock.release(lease)


def test_answer_that_a_call_waited_for_is_timed(
    counted: Counted, three_nodes: DevNodes
) -> None:
    """With one node out of three gone, both others are waited for."""
    three_nodes.nodes[2].stop()
    before = [counted.timed(number) for number in (0, 1)]

    counted.redlock.acquire("k")

    assert [counted.timed(number) for number in (0, 1)] == [b + 1 for b in before]
