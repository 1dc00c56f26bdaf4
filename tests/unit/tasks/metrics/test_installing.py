"""Metrics are of the app that asked for them, and cost nothing where nobody did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import Celery, signals
from prometheus_client import CollectorRegistry, generate_latest

from celery_redlock import metrics
from celery_redlock.runtime import runtime_of
from celery_redlock.testing import SignalRecorder
from tests.nodes.support import run_python
from tests.unit.tasks.metrics.support import private_job

if TYPE_CHECKING:
    from celery_redlock.testing import FakeNodes
    from tests.unit.tasks.support import Worker

BARE = """
import sys
from celery import Celery
from celery_redlock import signals, singleton_task
from celery_redlock.runtime import runtime_of

app = Celery("bare")
app.conf.redlock_nodes = ["redis://127.0.0.1:1"]
@singleton_task(app=app)
def job(): ...
app.finalize()

assert runtime_of(app).redlock.transport.observer is None
for name in set(signals.__all__) - {"lock_heartbeat"}:
    assert not getattr(signals, name).receivers, name
costly = {"prometheus_client", "celery_redlock.metrics", "celery_redlock.tracing"}
assert not costly & sys.modules.keys()
"""


def test_nothing_is_loaded_or_received_where_it_is_not_installed() -> None:
    """A worker without metrics pays nothing for them."""
    run_python(BARE)


def test_second_installation_changes_nothing(
    app: Celery, installed: metrics.Metrics, worker: Worker, registry: CollectorRegistry
) -> None:
    """What is done twice counts once."""
    assert metrics.install(app, port=1) is installed

    worker.run(private_job(app))

    of = {"task": "job"}
    assert registry.get_sample_value("redlock_hold_seconds_count", of) == 1


@pytest.mark.usefixtures("installed")
def test_locks_of_another_app_are_not_counted(
    nodes: FakeNodes, registry: CollectorRegistry
) -> None:
    """Each app has metrics of its own, or none."""
    other = Celery("other", broker="memory://", set_as_current=False)
    other.conf.redlock_nodes = nodes.urls
    runtime_of(other).use(nodes.redlock())

    with SignalRecorder() as events, private_job(other).lock():
        pass

    assert events.names == ["lock_acquired", "lock_released"]
    assert 'task="job"' not in generate_latest(registry).decode()


class Sender:
    """A worker, as far as its signals show it."""

    def __init__(self, app: Celery) -> None:
        self.app = app


def test_app_with_wrong_settings_can_be_metered() -> None:
    """Its settings may come later; a worker that starts says what is wrong."""
    app = Celery("unset", broker="memory://", set_as_current=False)
    installed = metrics.install(app, registry=CollectorRegistry())

    signals.worker_init.send(sender=Sender(app))
    text = generate_latest(installed.registry).decode()

    assert "redlock_wait_seconds" in text
    assert "redlock_nodes" not in text
    installed.uninstall()


def test_uninstalled_is_as_if_it_had_not_been(
    app: Celery, installed: metrics.Metrics, worker: Worker, registry: CollectorRegistry
) -> None:
    """Twice is harmless; it can be installed again in the same registry."""
    task = private_job(app)
    installed.uninstall()
    installed.uninstall()
    worker.run(task)
    assert 'task="job"' not in generate_latest(registry).decode()

    again = metrics.install(app, registry=registry)
    worker.run(task)
    again.uninstall()

    of = {"task": "job"}
    assert registry.get_sample_value("redlock_hold_seconds_count", of) == 1
