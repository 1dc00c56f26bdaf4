"""Metrics: what is counted and timed, for the app that installed them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery, signals
from prometheus_client import CollectorRegistry as Registry
from prometheus_client import generate_latest

from celery_redlock import DuplicateTask, LockHeld, metrics
from celery_redlock.app.runtime import runtime_of
from celery_redlock.election import Elector
from celery_redlock.locks.redlock import Redlock
from celery_redlock.metrics import instruments
from celery_redlock.metrics.collector import StateCollector
from celery_redlock.metrics.instruments import instruments_in
from celery_redlock.policies import Raise
from celery_redlock.signals import (
    leader_elected,
    leader_resigned,
    lock_cancelled,
    lock_renewed,
    publish_deduplicated,
)
from celery_redlock.testing import FakeNodes, SignalRecorder
from celery_redlock.wire.quorum import Vote, VoteKind
from tests.interruptions import interruptions
from tests.nodes.support import WITHOUT_HOOK, run_python
from tests.unit.tasks.support import KEY, LONG, Worker


@pytest.fixture
def counts(worker: Worker) -> Iterator[Registry]:
    """Install metrics for the app, and give their registry."""
    registry = Registry()
    installed = metrics.install(worker.app, registry=registry)
    yield registry
    installed.uninstall()


def value(counts: Registry, name: str, **labels: str) -> float | None:
    """Return the value of a series of the task, or None if there is none."""
    labels = labels if "election" in labels else {"task": "job", **labels}
    return counts.get_sample_value(f"redlock_{name}", labels)


def text_of(counts: Registry) -> str:
    """Return what a scrape gets."""
    return generate_latest(counts).decode()


# -- calls -------------------------------------------------------------------------


def test_wait_and_hold_of_a_call_are_timed(worker: Worker, counts: Registry) -> None:
    """The wait ends with the grant, and the hold with the release."""

    @worker.task()
    def job() -> None:
        worker.nodes.clock.sleep(2.0)

    worker.run(job)

    assert value(counts, "wait_seconds_count", outcome="granted") == 1
    assert value(counts, "wait_seconds_sum", outcome="granted") == 0
    assert value(counts, "hold_seconds_sum") == pytest.approx(2.0)


def test_hold_ends_with_the_loss(worker: Worker, counts: Registry) -> None:
    """The body may run on, and does not hold its lock any more."""

    @worker.task(on_lock_lost="warn")
    def job() -> None:
        worker.nodes.clock.sleep(60.0)

    worker.run(job)

    assert value(counts, "hold_seconds_sum") == pytest.approx(9.9, abs=0.1)


@pytest.mark.parametrize(
    ("policy", "word", "decision"),
    [
        *((word, word, word) for word in ("skip", "raise", "retry", "allow")),
        (lambda _: "skip", "callable", "skip"),
    ],
)
def test_conflict_is_counted_by_policy_and_decision(
    worker: Worker, counts: Registry, policy: Any, word: str, decision: str
) -> None:
    """All callables have one label, so that labels take few values."""
    worker.refuse(worker.leased_job(on_conflict=policy))

    assert value(counts, "conflicts_total", policy=word, decision=decision) == 1


def test_wait_without_success_is_timed(worker: Worker, counts: Registry) -> None:
    """The longest waits end without a grant, so they must be visible."""
    worker.refuse(worker.leased_job(on_conflict="wait", wait_timeout=3))

    assert value(counts, "wait_seconds_count", outcome="refused") == 1
    waited = value(counts, "wait_seconds_sum", outcome="refused")
    assert waited is not None
    assert 2.5 < waited < 3.5


def test_time_in_a_backlog_is_timed(worker: Worker, counts: Registry) -> None:
    """It counts from the first refusal on, through all copies of the call."""
    job = worker.leased_job(limit=1)

    call = worker.refuse(job)
    worker.nodes.clock.sleep(30.0)
    worker.refuse(job, id=call.id)
    worker.nodes.clock.sleep(12.0)
    worker.run(job, id=call.id)
    worker.run(job)  # this one was never refused

    assert value(counts, "backlog_seconds_count") == 1
    assert value(counts, "backlog_seconds_sum") == pytest.approx(42.0, abs=0.5)


def test_outage_is_counted_and_timed(worker: Worker, counts: Registry) -> None:
    """An outage is a wait with the outcome "unreachable"."""
    worker.nodes.partition(0, 1)

    worker.run(worker.leased_job(on_backend_error="raise"))

    assert value(counts, "outages_total", decision="raise") == 1
    assert value(counts, "wait_seconds_count", outcome="unreachable") == 1


def test_conflict_at_publish_and_cancelled_call_are_counted(
    worker: Worker, counts: Registry
) -> None:
    """A conflict at publish has the policy of that stage as its label."""
    stages = {"publish": "raise", "execute": "skip"}
    task = worker.leased_job(unique_while="queued", on_conflict=stages)

    publish_deduplicated.send(sender=task, conflict=None, decision=Raise())
    lease = worker.rival.acquire("k")
    lock_cancelled.send(sender=task, lease=lease, task_id="", cancelled_by="other")

    labels = {"policy": "raise", "decision": "raise"}
    assert value(counts, "publish_conflicts_total", **labels) == 1
    assert value(counts, "cancellations_total") == 1


def test_lock_outside_of_a_task_is_counted(worker: Worker, counts: Registry) -> None:
    """``task.lock()`` in a view counts for the task. Its refusal raises only."""
    task = worker.leased_job()

    with task.lock():
        pass
    worker.rival.acquire(KEY)
    with pytest.raises(LockHeld, match=KEY) as caught, task.lock():
        pass

    assert not isinstance(caught.value, DuplicateTask)
    assert value(counts, "wait_seconds_count", outcome="granted") == 1


def test_keys_and_ids_are_no_labels(worker: Worker, counts: Registry) -> None:
    """Their number has no limit, so the number of series would have none."""
    run = worker.refuse(worker.leased_job())

    text = text_of(counts)

    assert 'task="job"' in text
    assert KEY not in text
    assert run.id not in text
    assert "other-id" not in text


# -- renewals, terms, forks --------------------------------------------------------


@pytest.mark.parametrize(("lateness", "late"), [(0.0, 0), (1.5, 0), (1.7, 1)])
def test_renewal_is_late_from_half_of_the_ttl_on(
    worker: Worker, counts: Registry, lateness: float, late: int
) -> None:
    """From a third to half of a ttl of 10 s there are 1.67 s."""
    lease = worker.rival.acquire("k")

    facts = {"lease": lease, "task_id": "", "lateness": lateness}
    lock_renewed.send(sender=worker.leased_job(), **facts)

    assert value(counts, "renewal_lateness_seconds_sum") == lateness
    assert value(counts, "late_renewals_total") == late


def test_terms_are_counted(worker: Worker, counts: Registry) -> None:
    """All terms count that begin, and of those that end only the lost ones."""
    term = Elector(worker.rival, "beat:unit", ttl=5.0).campaign()

    leader_elected.send(sender=worker, term=term)
    leader_resigned.send(sender=worker, term=term, lost=False)
    leader_resigned.send(sender=worker, term=term, lost=True)

    assert value(counts, "elections_total", election="beat:unit") == 1
    assert value(counts, "terms_lost_total", election="beat:unit") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.long
def test_child_that_is_forked_while_its_parent_counts_can_count() -> None:
    """It would inherit a closed lock, and hang at its first task."""
    count = instruments_in(Registry())
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


def test_count_that_is_interrupted_does_not_keep_others_from_counting() -> None:
    """The watchdog counts too: locks would not be renewed any more."""
    count, vote = instruments_in(Registry()), Vote(VoteKind.GRANTED)
    has_counted = threading.Event()

    def count_in_another_thread() -> None:
        count.on_answer("node", vote, 0.001)
        has_counted.set()

    for interruption in interruptions(instruments.__file__):
        has_counted.clear()
        with interruption:
            count.on_answer("node", vote, 0.001)
        thread = threading.Thread(target=count_in_another_thread, daemon=True)
        thread.start()
        assert has_counted.wait(LONG)


FORK = """
import os, signal, sys, threading
from prometheus_client import CollectorRegistry
from celery.utils.dispatch import Signal
from celery_redlock.app.runtime import SignalDispatcher
from celery_redlock.wire.quorum import Vote, VoteKind
from celery_redlock.metrics import instruments

count = instruments.instruments_in(CollectorRegistry())
dispatcher, heard = SignalDispatcher(), threading.Event()
signal_of_ours = Signal()
signal_of_ours.connect(lambda **_: heard.set(), weak=False)
dispatcher.dispatch(signal=signal_of_ours, sender=None)
assert heard.wait(20)
counts, forked = threading.Event(), threading.Event()

def keep_counting():
    with instruments.counting():
        counts.set()
        forked.wait()

threading.Thread(target=keep_counting, daemon=True).start()
counts.wait()
heard.clear()
pid = os.fork()
if not pid:
    signal.alarm(20)                # in place of a hang
    count.on_answer("node", Vote(VoteKind.GRANTED), 0.001)
    dispatcher.dispatch(signal=signal_of_ours, sender=None)
    os._exit(not heard.wait(10))
forked.set()
print(os.waitpid(pid, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_child_counts_and_sends_signals_after_a_fork_that_runs_no_hook() -> None:
    """It has no thread of its parent, and no lock that such a thread holds."""
    assert run_python(WITHOUT_HOOK + FORK) == ["0"]


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


@pytest.mark.long
def test_app_without_metrics_loads_and_connects_nothing() -> None:
    """A worker without metrics pays nothing for them."""
    run_python(BARE)


def test_second_installation_changes_nothing(worker: Worker, counts: Registry) -> None:
    """Each call still counts once."""
    assert metrics.install(worker.app, port=1) is metrics.install(worker.app)

    worker.run(worker.leased_job())

    assert value(counts, "hold_seconds_count") == 1


def test_locks_of_another_app_are_not_counted(worker: Worker, counts: Registry) -> None:
    """Each app has its own metrics, or none."""
    other = Celery("other", broker="memory://", set_as_current=False)
    other.conf.redlock_nodes = worker.nodes.urls
    runtime_of(other).use(worker.nodes.redlock())

    with SignalRecorder() as events, Worker(other, worker.nodes).leased_job().lock():
        pass

    assert events.names == ["lock_acquired", "lock_released"]
    assert 'task="job"' not in text_of(counts)


class Meeting(Redlock):
    """A lock service at which two threads meet."""

    met = threading.Barrier(2, timeout=10.0)

    @property
    def asks_for_votes(self) -> bool:
        """Whether it may ask for votes, when both want to know."""
        self.met.wait()
        return True

    @asks_for_votes.setter
    def asks_for_votes(self, _: bool) -> None:
        pass


def test_first_scrapes_at_once_make_one_lock_service() -> None:
    """Else nothing closes the connections of the other one."""
    app = Celery("scraped", set_as_current=False)
    app.conf.redlock_nodes = ["redis://127.0.0.1:1/0"]
    runtime_of(app).use(Meeting(app.conf.redlock_nodes))
    collector = StateCollector(app)

    def service(_: int) -> Redlock:
        return collector._own_redlock()  # noqa: SLF001  (what a scrape asks)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(service, range(2))

    assert first is second


def test_metrics_can_be_installed_before_the_settings(nodes: FakeNodes) -> None:
    """A worker that starts reports the missing settings; a scrape has no gauges."""
    app = Celery("unset", broker="memory://", set_as_current=False)
    installed = metrics.install(app, registry=Registry())

    signals.worker_init.send(sender=Worker(app, nodes))
    text = text_of(installed.registry)

    assert "redlock_wait_seconds" in text
    assert "redlock_nodes" not in text
    installed.uninstall()


def test_uninstalled_metrics_count_nothing(worker: Worker, counts: Registry) -> None:
    """Twice is harmless, and the same registry can be used again."""
    task = worker.leased_job()
    installed = metrics.install(worker.app)
    installed.uninstall()
    installed.uninstall()
    worker.run(task)
    assert 'task="job"' not in text_of(counts)

    again = metrics.install(worker.app, registry=counts)
    worker.run(task)
    again.uninstall()

    assert value(counts, "hold_seconds_count") == 1
