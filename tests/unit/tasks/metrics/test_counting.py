"""What is counted and timed, under which labels."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from celery_redlock import DuplicateTask, LockHeld, singleton_task
from celery_redlock.core.ballot import Vote, VoteKind
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
from tests.unit.tasks.metrics.support import other_holder, private_job

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes
    from tests.unit.tasks.support import Worker

# -- runs and refusals -------------------------------------------------------------


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

    worker.run(private_job(app, on_conflict=policy))

    decision = "run" if policy == "allow" else policy
    about = {"task": "job", "policy": policy, "decision": decision}
    assert registry.get_sample_value("redlock_conflicts_total", about) == 1


@pytest.mark.usefixtures("installed")
def test_wait_in_vain_is_timed(
    app: Celery, worker: Worker, rival: Redlock, registry: CollectorRegistry
) -> None:
    """Nobody would see the longest waits if only those counted that ended well."""
    other_holder(rival)
    task = private_job(app, on_conflict="wait", wait_timeout=3)

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

    worker.run(private_job(app, on_conflict=lambda _: "skip"))

    about = {"task": "job", "policy": "callable", "decision": "skip"}
    assert registry.get_sample_value("redlock_conflicts_total", about) == 1


@pytest.mark.usefixtures("installed")
def test_outage_is_counted(
    app: Celery, worker: Worker, nodes: FakeNodes, registry: CollectorRegistry
) -> None:
    """Too few nodes answer: that, and how long it took to find out."""
    nodes.partition(0, 1)

    worker.run(private_job(app, on_backend_error="raise"))

    about = {"task": "job", "decision": "raise"}
    waited = {"task": "job", "outcome": "unreachable"}
    assert registry.get_sample_value("redlock_outages_total", about) == 1
    assert registry.get_sample_value("redlock_wait_seconds_count", waited) == 1


@pytest.mark.usefixtures("installed")
def test_conflicts_at_publish_and_cancelled_runs_are_counted(
    app: Celery, rival: Redlock, registry: CollectorRegistry
) -> None:
    """With the policy of that stage, where there are two."""
    stages = {"publish": "raise", "execute": "skip"}
    task = private_job(app, unique_while="queued", on_conflict=stages)

    publish_deduplicated.send(sender=task, conflict=None, decision=Raise())
    lease = rival.acquire("k")
    lock_cancelled.send(sender=task, lease=lease, task_id="", cancelled_by="other")

    about = {"task": "job", "policy": "raise", "decision": "raise"}
    published = registry.get_sample_value("redlock_publish_conflicts_total", about)
    assert published == 1
    of = {"task": "job"}
    assert registry.get_sample_value("redlock_cancellations_total", of) == 1


@pytest.mark.usefixtures("installed")
def test_lock_outside_of_a_task_is_counted(
    app: Celery, rival: Redlock, registry: CollectorRegistry
) -> None:
    """``task.lock()`` in a view counts for the task; a refusal raises and does not."""
    task = private_job(app)

    with task.lock():
        pass
    other_holder(rival)
    with pytest.raises(LockHeld, match="private-key") as caught, task.lock():
        pass

    assert not isinstance(caught.value, DuplicateTask)
    granted = {"task": "job", "outcome": "granted"}
    assert registry.get_sample_value("redlock_wait_seconds_count", granted) == 1


# -- the rest ----------------------------------------------------------------------


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("lateness", "late"), [(0.0, 0), (1.5, 0), (1.7, 1)])
def test_renewal_is_late_from_half_of_the_ttl_on(
    app: Celery, rival: Redlock, registry: CollectorRegistry, lateness: float, late: int
) -> None:
    """Planned for a third of 10 s, it has 1.67 s until then."""
    lease = rival.acquire("k")

    lock_renewed.send(
        sender=private_job(app), lease=lease, task_id="", lateness=lateness
    )

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
    run = worker.run(private_job(app))

    text = generate_latest(registry).decode()

    assert 'task="job"' in text
    assert "private-key" not in text
    assert run.id not in text
    assert "other-id" not in text


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
