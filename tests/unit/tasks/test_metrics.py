"""What is counted when, and that it costs nothing where nobody asked for it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, signals
from prometheus_client import CollectorRegistry, generate_latest

from celery_redlock import DuplicateTask, metrics, singleton_task
from celery_redlock.core.ballot import Vote, VoteKind
from celery_redlock.core.lease import Holder
from celery_redlock.election import Elector
from celery_redlock.metrics.instruments import instruments_in
from celery_redlock.policies import Raise
from celery_redlock.runtime import runtime_of
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


@pytest.fixture
def registry() -> CollectorRegistry:
    """Give a place for the metrics of this test."""
    return CollectorRegistry()


@pytest.fixture
def installed(app: Celery, registry: CollectorRegistry) -> Iterator[metrics.Metrics]:
    """Count the locks of the app."""
    installed = metrics.install(app, registry=registry)
    yield installed
    installed.uninstall()


def singleton(app: Celery, **options: Any) -> Any:
    """Return a task whose key nobody should find among labels."""

    @singleton_task(app=app, shared=False, name="job", key="private-key", **options)
    def job() -> None: ...

    return job


def other_holder(rival: Redlock) -> None:
    """Let another execution hold the lock of the task."""
    rival.acquire("private-key", facts=Holder.here(task="job", task_id="other-id"))


# -- what is counted ---------------------------------------------------------------


@pytest.mark.usefixtures("installed")
def test_run_is_timed(
    app: Celery, worker: Worker, registry: CollectorRegistry, nodes: FakeNodes
) -> None:
    """From wanting the lock to having it, and from there to giving it back."""

    @singleton_task(app=app, shared=False, name="job")
    def job() -> None:
        nodes.clock.sleep(2.0)

    worker.run(job)

    granted = {"task": "job", "outcome": "granted"}
    assert registry.get_sample_value("redlock_wait_seconds_count", granted) == 1
    assert registry.get_sample_value("redlock_wait_seconds_sum", granted) == 0
    held = registry.get_sample_value("redlock_hold_seconds_sum", {"task": "job"})
    assert held == pytest.approx(2.0)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("policy", ["skip", "raise", "retry", "allow"])
def test_conflict_is_counted_by_task_and_policy(
    app: Celery,
    worker: Worker,
    rival: Redlock,
    registry: CollectorRegistry,
    policy: str,
) -> None:
    """With what the policy decided."""
    other_holder(rival)

    worker.run(singleton(app, on_conflict=policy))

    decision = "run" if policy == "allow" else policy
    about = {"task": "job", "policy": policy, "decision": decision}
    assert registry.get_sample_value("redlock_conflicts_total", about) == 1


@pytest.mark.usefixtures("installed")
def test_wait_in_vain_is_timed(
    app: Celery, worker: Worker, rival: Redlock, registry: CollectorRegistry
) -> None:
    """Nobody would see the longest waits if only those counted that ended well."""
    other_holder(rival)
    task = singleton(app, on_conflict="wait", wait_timeout=3)

    worker.run(task)

    refused = {"task": "job", "outcome": "refused"}
    assert registry.get_sample_value("redlock_wait_seconds_count", refused) == 1
    waited = registry.get_sample_value("redlock_wait_seconds_sum", refused)
    assert waited is not None
    assert 2.5 < waited < 3.5


@pytest.mark.usefixtures("installed")
def test_function_as_policy_has_no_name_of_its_own(
    app: Celery, worker: Worker, rival: Redlock, registry: CollectorRegistry
) -> None:
    """Labels take few values, whatever users write."""
    other_holder(rival)

    worker.run(singleton(app, on_conflict=lambda _: "skip"))

    about = {"task": "job", "policy": "callable", "decision": "skip"}
    assert registry.get_sample_value("redlock_conflicts_total", about) == 1


@pytest.mark.usefixtures("installed")
def test_outage_is_counted(
    app: Celery, worker: Worker, nodes: FakeNodes, registry: CollectorRegistry
) -> None:
    """Too few nodes answer: that, and how long it took to find out."""
    nodes.partition(0, 1)

    worker.run(singleton(app, on_backend_error="raise"))

    about = {"task": "job", "decision": "raise"}
    waited = {"task": "job", "outcome": "unreachable"}
    assert registry.get_sample_value("redlock_outages_total", about) == 1
    assert registry.get_sample_value("redlock_wait_seconds_count", waited) == 1


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("lateness", "late"), [(0.0, 0), (1.5, 0), (1.7, 1)])
def test_renewal_is_late_from_half_of_the_ttl_on(
    app: Celery, rival: Redlock, registry: CollectorRegistry, lateness: float, late: int
) -> None:
    """Planned for a third of 10 s, it has 1.67 s until then."""
    lease = rival.acquire("k")

    lock_renewed.send(sender=singleton(app), lease=lease, task_id="", lateness=lateness)

    of = {"task": "job"}
    total = registry.get_sample_value("redlock_renewal_lateness_seconds_sum", of)
    assert total == lateness
    assert registry.get_sample_value("redlock_late_renewals_total", of) == late


@pytest.mark.usefixtures("installed")
def test_terms_are_counted(
    app: Celery, rival: Redlock, registry: CollectorRegistry
) -> None:
    """Those that begin, and of those that end only the lost ones."""

    class Scheduler:
        """What sends the signals in a beat."""

    sender: Any = Scheduler()
    sender.app = app
    term = Elector(rival, "beat:unit", ttl=5.0).campaign()

    leader_elected.send(sender=sender, term=term)
    leader_resigned.send(sender=sender, term=term, lost=False)
    leader_resigned.send(sender=sender, term=term, lost=True)

    of = {"election": "beat:unit"}
    assert registry.get_sample_value("redlock_elections_total", of) == 1
    assert registry.get_sample_value("redlock_terms_lost_total", of) == 1


@pytest.mark.usefixtures("installed")
def test_keys_and_ids_are_no_labels(
    app: Celery, worker: Worker, rival: Redlock, registry: CollectorRegistry
) -> None:
    """There is no end of them, and of series with them."""
    other_holder(rival)
    run = worker.run(singleton(app))

    text = generate_latest(registry).decode()

    assert "job" in text
    assert "private-key" not in text
    assert run.id not in text
    assert "other-id" not in text


@pytest.mark.usefixtures("installed")
def test_conflicts_at_publish_and_cancelled_runs_are_counted(
    app: Celery, rival: Redlock, registry: CollectorRegistry
) -> None:
    """With the policy of that stage, where there are two."""
    stages = {"publish": "raise", "execute": "skip"}
    task = singleton(app, unique_while="queued", on_conflict=stages)

    publish_deduplicated.send(sender=task, conflict=None, decision=Raise())
    lease = rival.acquire("k")
    lock_cancelled.send(sender=task, lease=lease, task_id="", cancelled_by="other")

    about = {"task": "job", "policy": "raise", "decision": "raise"}
    published = registry.get_sample_value("redlock_publish_conflicts_total", about)
    assert published == 1
    of = {"task": "job"}
    assert registry.get_sample_value("redlock_cancellations_total", of) == 1


# -- installing --------------------------------------------------------------------


def test_nothing_is_loaded_or_received_where_it_is_not_installed() -> None:
    """A worker without metrics pays nothing for them."""
    run_python(BARE)


def test_second_installation_changes_nothing(
    app: Celery, installed: metrics.Metrics, worker: Worker, registry: CollectorRegistry
) -> None:
    """What is done twice counts once."""
    assert metrics.install(app, port=1) is installed

    worker.run(singleton(app))

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

    with SignalRecorder() as events, singleton(other).lock():
        pass

    assert events.names == ["lock_acquired", "lock_released"]
    assert 'task="job"' not in generate_latest(registry).decode()


def test_app_with_wrong_settings_can_be_metered() -> None:
    """Its settings may come later; a worker that starts says what is wrong."""
    app = Celery("unset", broker="memory://", set_as_current=False)
    installed = metrics.install(app, registry=CollectorRegistry())

    signals.worker_init.send(sender=Sender(app))
    text = generate_latest(installed.registry).decode()

    assert "redlock_wait_seconds" in text
    assert "redlock_nodes" not in text
    installed.uninstall()


class Sender:
    """A worker, as far as its signals show it."""

    def __init__(self, app: Celery) -> None:
        self.app = app


def test_uninstalled_is_as_if_it_had_not_been(
    app: Celery, installed: metrics.Metrics, worker: Worker, registry: CollectorRegistry
) -> None:
    """Twice is harmless; it can be installed again in the same registry."""
    task = singleton(app)
    installed.uninstall()
    installed.uninstall()
    worker.run(task)
    assert 'task="job"' not in generate_latest(registry).decode()

    again = metrics.install(app, registry=registry)
    worker.run(task)
    again.uninstall()

    of = {"task": "job"}
    assert registry.get_sample_value("redlock_hold_seconds_count", of) == 1


@pytest.mark.usefixtures("installed")
def test_lock_outside_of_a_task_is_counted(
    app: Celery, rival: Redlock, registry: CollectorRegistry
) -> None:
    """``task.lock()`` in a view counts for the task; a refusal raises and does not."""
    task = singleton(app)

    with task.lock():
        pass
    other_holder(rival)
    with pytest.raises(Exception, match="private-key") as caught, task.lock():
        pass

    assert not isinstance(caught.value, DuplicateTask)
    granted = {"task": "job", "outcome": "granted"}
    assert registry.get_sample_value("redlock_wait_seconds_count", granted) == 1


# -- forks -------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_that_is_forked_while_its_parent_counts_can_count(
    registry: CollectorRegistry,
) -> None:
    """It would inherit a lock that nobody opens again, and hang at its first task."""
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
