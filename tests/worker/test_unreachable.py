"""What a call does when too few lock nodes answer: each ``on_backend_error``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import states

from celery_redlock import QuorumUnreachable
from celery_redlock.devnodes import DevNodes
from tests.worker.harness.nodes import LockNodes
from tests.worker.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.worker.harness.deployment import Deployment, Site


def test_retry_runs_the_job_when_the_nodes_are_back(
    frail: Deployment, key: str
) -> None:
    """By default the job waits for the nodes, and is not lost."""
    with frail.nodes.majority_paused():
        result = frail.send("quick", key)
        until(lambda: result.state == states.RETRY)
        assert frail.stage.runs(key) == []

    assert result.get(timeout=40) == result.id
    assert len(frail.stage.runs(key)) == 1


def test_raise_fails_the_job(frail: Deployment, key: str) -> None:
    """With ``raise`` the result says which nodes did not answer."""
    with frail.nodes.majority_paused():
        result = frail.send("unreachable-raise", key)

        with pytest.raises(QuorumUnreachable, match="2 of 5"):
            result.get(timeout=10)

    assert result.state == states.FAILURE
    assert frail.stage.runs(key) == []


def test_run_runs_the_job_without_a_lock(frail: Deployment, key: str) -> None:
    """With ``run`` the job runs and knows that it has no lease."""
    with frail.nodes.majority_paused():
        has_lease = frail.send("unreachable-run", key).get(timeout=10)

    assert has_lease is False
    assert len(frail.stage.runs(key)) == 1


def test_skip_ends_the_job_as_revoked(frail: Deployment, key: str) -> None:
    """With ``skip`` the job does not run, and its result is final."""
    with frail.nodes.majority_paused():
        result = frail.send("unreachable-skip", key)

        with pytest.raises(QuorumUnreachable):
            result.get(timeout=10)

    assert result.state == states.REVOKED
    assert frail.stage.runs(key) == []


def test_failed_attempts_leave_nothing_on_the_nodes_that_answered(
    frail: Deployment, key: str
) -> None:
    """Votes that were too few are given back."""
    with frail.nodes.majority_paused(), pytest.raises(QuorumUnreachable):
        frail.send("unreachable-raise", key).get(timeout=10)

    frail.nodes.until_free(key)
    assert frail.send("quick", key).get(timeout=20)


def test_minority_down_stops_nobody(frail: Deployment, key: str) -> None:
    """With two of five nodes hung, jobs run and duplicates are told apart."""
    with frail.nodes.minority_paused():
        first = frail.begin("job-wait", key)
        second = frail.send("job-wait", key)
        until(lambda: f"[{second.id}] received" in frail.logs())
        frail.stage.open(key)

        assert first.get(timeout=10) == first.id
        assert second.get(timeout=10) == second.id

    assert frail.stage.overlaps(key) == []


def test_new_nodes_are_waited_for(redis_server: str, site: Site, key: str) -> None:
    """Nodes that may have forgotten locks say how long: jobs wait so long, and run."""
    with DevNodes(3, max_ttl=2, initialize=False) as dev:
        fresh = LockNodes(dev)
        here = site.deploy(
            fresh, settings={"redlock_max_ttl": 2, "redlock_ttl": 1.5}, concurrency=1
        )
        try:
            result = here.send("quick", key)
            until(lambda: result.state == states.RETRY)

            assert result.get(timeout=20) == result.id
            assert len(here.stage.runs(key)) == 1
            assert "quarantine" in here.logs_of_the_package()
        finally:
            here.teardown()
            fresh.close()


def test_worker_starts_without_its_nodes(
    deploy: Callable[..., Deployment], frail_nodes: LockNodes, key: str
) -> None:
    """A worker whose lock nodes are down starts, says so, and runs when they are up."""
    with frail_nodes.majority_paused():
        here = deploy(frail_nodes, concurrency=1)
        assert "answered" in here.logs_of_the_package()

    assert here.send("quick", key).get(timeout=40)
