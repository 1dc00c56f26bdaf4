"""Workers and lock nodes in containers: the same tests, and what only they show.

The functions that are imported are those of ``tests/worker``, with the fixtures of
this folder: Celery's own worker container, and Redis containers as lock nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from celery import states

from celery_redlock import LockLost
from tests.docker.containers import DockerNode
from tests.docker.site import DockerDeployment
from tests.harness.waiting import until
from tests.worker.test_endings import (
    test_killed_worker_keeps_others_out_until_the_ttl_ends as _killed_worker,
)
from tests.worker.test_pools import (
    test_pool_renews_the_lock_while_a_body_runs,
    test_pool_runs_equal_calls_once,
    test_pool_stops_a_body_whose_lock_is_lost,
)
from tests.worker.test_redelivery import (
    test_retry_that_overtakes_its_parent_is_not_a_duplicate,
)
from tests.worker.test_unreachable import (
    test_failed_attempts_leave_nothing,
    test_minority_down_stops_no_lock,
)

__all__ = [
    "test_failed_attempts_leave_nothing",
    "test_minority_down_stops_no_lock",
    "test_pool_renews_the_lock_while_a_body_runs",
    "test_pool_runs_equal_calls_once",
    "test_pool_stops_a_body_whose_lock_is_lost",
    "test_retry_that_overtakes_its_parent_is_not_a_duplicate",
]

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(240),
]  # the first builds the image

test_killed_container_keeps_others_out_until_the_ttl_ends = _killed_worker


def test_killed_child_in_a_container_is_run_again_once(
    prefork: DockerDeployment, key: str
) -> None:
    """Pids repeat between containers, and a dead child frees its own lock alone."""
    result = prefork.begin("late", key)

    prefork.kill_child(key)

    until(lambda: len(prefork.stage.runs(key)) == 2)
    prefork.stage.open(key)
    assert result.get(timeout=10) == result.id
    assert [run.outcome for run in prefork.stage.runs(key)] == ["killed", "done"]


def test_paused_container_is_told_when_it_wakes(
    deploy: Callable[..., DockerDeployment], key: str
) -> None:
    """Another worker runs meanwhile; who slept through its ttl gets ``LockLost``."""
    here = deploy(workers=2, concurrency=1)
    first = here.begin("short", key)
    sleeper = here.worker_of(key)
    (run,) = here.stage.runs(key)

    here.pause_worker(sleeper)
    try:
        here.nodes.until_free(key)
        second = here.send("short", key)
        until(lambda: len(here.stage.running(key)) == 2)
    finally:
        here.resume_worker(sleeper)

    with pytest.raises(LockLost):
        first.get(timeout=10)
    here.stage.open(key)
    assert second.get(timeout=10) == second.id
    by_host = {run.host: run.outcome for run in here.stage.runs(key)}
    assert by_host.pop(run.host) == "LockLost"
    assert list(by_host.values()) == ["done"]


@pytest.fixture
def unplugged(prefork: DockerDeployment, key: str) -> Iterator[Callable[[int], None]]:
    """Give a function that cuts nodes off; afterwards all are back, and found again."""
    cut: list[DockerNode] = []

    def unplug(count: int) -> None:
        for node in prefork.nodes.dev.nodes[:count]:
            node.unplug()  # type: ignore[attr-defined]
            cut.append(node)  # type: ignore[arg-type]

    yield unplug
    for node in cut:
        node.plug()
    # Each process of the worker looks for the nodes by itself. A name can take time.
    for job in [prefork.send("quick", f"{key}-back-{n}") for n in range(8)]:
        assert job.get(timeout=60) == job.id


def test_minority_cut_off_stops_no_lock(
    prefork: DockerDeployment, key: str, unplugged: Callable[[int], None]
) -> None:
    """Packets to two of five nodes vanish: a lock is kept, others are granted."""
    first = prefork.begin("short", key)

    unplugged(2)

    assert prefork.send("quick", f"{key}-other").get(timeout=20)
    until(lambda: len(prefork.stage.notes(key, "signal-renewed")) >= 3, 20)
    prefork.stage.open(key)
    assert first.get(timeout=10) == first.id


def test_majority_cut_off_stops_the_body(
    prefork: DockerDeployment, key: str, unplugged: Callable[[int], None]
) -> None:
    """Packets to three of five nodes vanish: the lock cannot be proven any more."""
    first = prefork.begin("short", key)

    unplugged(3)

    with pytest.raises(LockLost):
        first.get(timeout=20)
    assert [run.outcome for run in prefork.stage.runs(key)] == ["LockLost"]


def test_job_waits_for_killed_containers_to_be_back(
    mortal: DockerDeployment, key: str
) -> None:
    """Two of three nodes are killed and come back empty: not lost, and not twice."""
    with mortal.nodes.majority_killed():
        result = mortal.send("quick", key)
        until(lambda: result.state == states.RETRY, 20)
        assert mortal.stage.runs(key) == []

    assert result.get(timeout=60) == result.id
    assert len(mortal.stage.runs(key)) == 1
