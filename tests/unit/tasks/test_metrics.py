"""Metrics: what is counted and timed, for the app that installed them."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, signals
from prometheus_client import CollectorRegistry, generate_latest

from celery_redlock import DuplicateTask, LockHeld, metrics, singleton_task
from celery_redlock.app.runtime import runtime_of
from celery_redlock.core.lease import Holder
from celery_redlock.core.quorum import Vote, VoteKind
from celery_redlock.election import Elector
from celery_redlock.metrics.instruments import instruments_in
from celery_redlock.policies import Raise
from celery_redlock.signals import (
    leader_elected,
    leader_resigned,
    lock_cancelled,
    lock_renewed,
    publish_deduplicated,
)
from celery_redlock.testing import SignalRecorder
from tests.nodes.support import run_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes
    from tests.unit.tasks.support import Worker

KEY = "private-key"


@pytest.fixture
def registry() -> CollectorRegistry:
    """Give a registry for the metrics of this test."""
    return CollectorRegistry()


@pytest.fixture
def installed(app: Celery, registry: CollectorRegistry) -> Iterator[metrics.Metrics]:
    """Install metrics for the app."""
    installed = metrics.install(app, registry=registry)
    yield installed
    installed.uninstall()


@pytest.fixture
def other_holder(rival: Redlock) -> None:
    """Let another call hold the lock of `job_of`."""
    rival.acquire(KEY, holder=Holder.here(task="job", task_id="other-id"))


def job_of(app: Celery, **options: Any) -> Any:
    """Return a task with a fixed key."""

    @singleton_task(app=app, shared=False, name="job", key=KEY, **options)
    def job() -> None: ...

    return job


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """Return the value of a series of the task, or None if there is none."""
    return registry.get_sample_value(f"redlock_{name}", {"task": "job", **labels})


# -- calls -------------------------------------------------------------------------


@pytest.mark.usefixtures("installed")
def test_wait_and_hold_of_a_call_are_timed(
    app: Celery, worker: Worker, registry: CollectorRegistry, nodes: FakeNodes
) -> None:
    """The wait ends with the grant, and the hold with the release."""

    @singleton_task(app=app, shared=False, name="job")
    def job() -> None:
        nodes.clock.sleep(2.0)

    worker.run(job)

    assert value(registry, "wait_seconds_count", outcome="granted") == 1
    assert value(registry, "wait_seconds_sum", outcome="granted") == 0
    assert value(registry, "hold_seconds_sum") == pytest.approx(2.0)


@pytest.mark.usefixtures("installed", "other_holder")
@pytest.mark.parametrize(
    ("policy", "labels"),
    [
        *((word, (word, word)) for word in ("skip", "raise", "retry", "allow")),
        (lambda _: "skip", ("callable", "skip")),
    ],
    ids=["skip", "raise", "retry", "allow", "callable"],
)
def test_conflict_is_counted_by_policy_and_decision(
    app: Celery,
    worker: Worker,
    registry: CollectorRegistry,
    policy: Any,
    labels: tuple[str, str],
) -> None:
    """All callables have one label, so that labels take few values."""
    worker.run(job_of(app, on_conflict=policy))

    named = dict(zip(("policy", "decision"), labels, strict=True))
    assert value(registry, "conflicts_total", **named) == 1


@pytest.mark.usefixtures("installed", "other_holder")
def test_wait_without_success_is_timed(
    app: Celery, worker: Worker, registry: CollectorRegistry
) -> None:
    """The longest waits end without a grant, so they must be visible."""
    worker.run(job_of(app, on_conflict="wait", wait_timeout=3))

    assert value(registry, "wait_seconds_count", outcome="refused") == 1
    waited = value(registry, "wait_seconds_sum", outcome="refused")
    assert waited is not None
    assert 2.5 < waited < 3.5


@pytest.mark.usefixtures("installed")
def test_outage_is_counted_and_timed(
    app: Celery, worker: Worker, nodes: FakeNodes, registry: CollectorRegistry
) -> None:
    """An outage is a wait with the outcome "unreachable"."""
    nodes.partition(0, 1)

    worker.run(job_of(app, on_backend_error="raise"))

    assert value(registry, "outages_total", decision="raise") == 1
    assert value(registry, "wait_seconds_count", outcome="unreachable") == 1


@pytest.mark.usefixtures("installed")
def test_conflict_at_publish_and_cancelled_call_are_counted(
    app: Celery, rival: Redlock, registry: CollectorRegistry
) -> None:
    """A conflict at publish has the policy of that stage as its label."""
    stages = {"publish": "raise", "execute": "skip"}
    task = job_of(app, unique_while="queued", on_conflict=stages)

    publish_deduplicated.send(sender=task, conflict=None, decision=Raise())
    lease = rival.acquire("k")
    lock_cancelled.send(sender=task, lease=lease, task_id="", cancelled_by="other")

    labels = {"policy": "raise", "decision": "raise"}
    assert value(registry, "publish_conflicts_total", **labels) == 1
    assert value(registry, "cancellations_total") == 1


@pytest.mark.usefixtures("installed")
def test_lock_outside_of_a_task_is_counted(
    app: Celery, rival: Redlock, registry: CollectorRegistry
) -> None:
    """``task.lock()`` in a view counts for the task. Its refusal raises only."""
    task = job_of(app)

    with task.lock():
        pass
    rival.acquire(KEY)
    with pytest.raises(LockHeld, match=KEY) as caught, task.lock():
        pass

    assert not isinstance(caught.value, DuplicateTask)
    assert value(registry, "wait_seconds_count", outcome="granted") == 1


@pytest.mark.usefixtures("installed", "other_holder")
def test_keys_and_ids_are_no_labels(
    app: Celery, worker: Worker, registry: CollectorRegistry
) -> None:
    """Their number has no limit, so the number of series would have none."""
    run = worker.run(job_of(app))

    text = generate_latest(registry).decode()

    assert 'task="job"' in text
    assert KEY not in text
    assert run.id not in text
    assert "other-id" not in text


# -- renewals, terms, forks --------------------------------------------------------


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("lateness", "late"), [(0.0, 0), (1.5, 0), (1.7, 1)])
def test_renewal_is_late_from_half_of_the_ttl_on(
    app: Celery, rival: Redlock, registry: CollectorRegistry, lateness: float, late: int
) -> None:
    """From a third to half of a ttl of 10 s there are 1.67 s."""
    lease = rival.acquire("k")

    lock_renewed.send(sender=job_of(app), lease=lease, task_id="", lateness=lateness)

    assert value(registry, "renewal_lateness_seconds_sum") == lateness
    assert value(registry, "late_renewals_total") == late


class Sender:
    """The sender of a signal of a worker or a beat."""

    def __init__(self, app: Celery) -> None:
        self.app = app


@pytest.mark.usefixtures("installed")
def test_terms_are_counted(
    app: Celery, rival: Redlock, registry: CollectorRegistry
) -> None:
    """All terms count that begin, and of those that end only the lost ones."""
    sender = Sender(app)
    term = Elector(rival, "beat:unit", ttl=5.0).campaign()

    leader_elected.send(sender=sender, term=term)
    leader_resigned.send(sender=sender, term=term, lost=False)
    leader_resigned.send(sender=sender, term=term, lost=True)

    of = {"election": "beat:unit"}
    assert registry.get_sample_value("redlock_elections_total", of) == 1
    assert registry.get_sample_value("redlock_terms_lost_total", of) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_that_is_forked_while_its_parent_counts_can_count(
    registry: CollectorRegistry,
) -> None:
    """It would inherit a closed lock, and hang at its first task."""
    count = instruments_in(registry)
    vote, stop = Vote(VoteKind.GRANTED), threading.Event()

    def keep_counting() -> None:
        while not stop.is_set():
            count.on_answer("node", vote, 0.001)

    thread = threading.Thread(target=keep_counting)
    thread.start()
    try:
        for _ in range(50):
            child = os.fork()
            if not child:
                count.on_answer("node", vote, 0.001)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


# -- installing --------------------------------------------------------------------

BARE = """
import sys
from celery import Celery
from celery_redlock import signals, singleton_task
from celery_redlock.app.runtime import runtime_of

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


def test_app_without_metrics_loads_and_connects_nothing() -> None:
    """A worker without metrics pays nothing for them."""
    run_python(BARE)


def test_second_installation_changes_nothing(
    app: Celery, installed: metrics.Metrics, worker: Worker, registry: CollectorRegistry
) -> None:
    """Each call still counts once."""
    assert metrics.install(app, port=1) is installed

    worker.run(job_of(app))

    assert value(registry, "hold_seconds_count") == 1


@pytest.mark.usefixtures("installed")
def test_locks_of_another_app_are_not_counted(
    nodes: FakeNodes, registry: CollectorRegistry
) -> None:
    """Each app has its own metrics, or none."""
    other = Celery("other", broker="memory://", set_as_current=False)
    other.conf.redlock_nodes = nodes.urls
    runtime_of(other).use(nodes.redlock())

    with SignalRecorder() as events, job_of(other).lock():
        pass

    assert events.names == ["lock_acquired", "lock_released"]
    assert 'task="job"' not in generate_latest(registry).decode()


def test_metrics_can_be_installed_before_the_settings() -> None:
    """A worker that starts reports the missing settings; a scrape has no gauges."""
    app = Celery("unset", broker="memory://", set_as_current=False)
    installed = metrics.install(app, registry=CollectorRegistry())

    signals.worker_init.send(sender=Sender(app))
    text = generate_latest(installed.registry).decode()

    assert "redlock_wait_seconds" in text
    assert "redlock_nodes" not in text
    installed.uninstall()


def test_uninstalled_metrics_count_nothing(
    app: Celery, installed: metrics.Metrics, worker: Worker, registry: CollectorRegistry
) -> None:
    """Twice is harmless, and the same registry can be used again."""
    task = job_of(app)
    installed.uninstall()
    installed.uninstall()
    worker.run(task)
    assert 'task="job"' not in generate_latest(registry).decode()

    again = metrics.install(app, registry=registry)
    worker.run(task)
    again.uninstall()

    assert value(registry, "hold_seconds_count") == 1
