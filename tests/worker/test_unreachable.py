"""Each ``on_backend_error``, for a call for which too few lock nodes answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import pytest
from celery import states

from celery_redlock import QuorumUnreachable, runtime_of
from tests.harness.deployment import Deploy, Deployment, Site
from tests.harness.lock_nodes import LockNodes, lock_nodes
from tests.harness.waiting import until

LONGEST_BACKOFF = 2.0  # seconds after which a node is connected to again
A_QUARANTINE = 62.0  # seconds, with the default settings
SHORT = {"redlock_max_ttl": 2, "redlock_ttl": 1.5}  # seconds: a short quarantine


class Outage(NamedTuple):
    """Workers, and a context manager in which their lock nodes fail."""

    here: Deployment
    lasts: Callable[[], AbstractContextManager[None]]


@contextmanager
def short_quarantine(site: Site, count: int, **options: Any) -> Iterator[Deployment]:
    """Give a worker with nodes of its own, which soon vote after a start."""
    with (
        lock_nodes(count, max_ttl=2, **options) as nodes,
        site.deploy(nodes, settings=SHORT) as deployment,
    ):
        yield deployment


@pytest.fixture(scope="module")
def mortal(redis_server: str, site: Site) -> Iterator[Deployment]:
    """Give a worker whose lock nodes may be killed."""
    with short_quarantine(site, 5) as deployment:
        yield deployment


@pytest.fixture(params=["hung", "killed"])
def outage(request: pytest.FixtureRequest) -> Outage:
    """Give workers and an outage of a majority of their nodes."""
    if request.param == "hung":
        here: Deployment = request.getfixturevalue("frail")
        return Outage(here, here.nodes.majority_paused)
    here = request.getfixturevalue("mortal")
    return Outage(here, here.nodes.majority_killed)


def test_retry_runs_the_job_when_the_nodes_are_back(outage: Outage, key: str) -> None:
    """By default the job waits for the nodes, and is not lost."""
    here = outage.here
    with outage.lasts():
        result = here.send("quick", key)
        until(lambda: result.state == states.RETRY)
        assert here.stage.runs(key) == []

    assert result.get(timeout=60) == result.id
    assert len(here.stage.runs(key)) == 1


def test_failed_attempts_leave_nothing(frail: Deployment, key: str) -> None:
    """A call without a quorum releases the votes that it has received."""
    with frail.nodes.majority_paused(), pytest.raises(QuorumUnreachable):
        frail.send("unreachable-raise", key).get(timeout=60)

    frail.nodes.until_free(key)
    assert frail.send("quick", key).get(timeout=60)


def test_minority_down_stops_no_lock(frail: Deployment, key: str) -> None:
    """With two of five nodes hung, jobs run and duplicates are recognized."""
    with frail.nodes.minority_paused():
        first = frail.begin("job-wait", key)
        second = frail.send("job-wait", key)
        until(lambda: frail.stage.notes(key, "signal-conflict"))
        frail.finish(key, first, second)

    assert frail.stage.overlaps(key) == []


def test_outage_that_is_over_delays_no_request(frail: Deployment, key: str) -> None:
    """Failures that a child saw in an outage do not fail its first job afterwards."""
    names = [f"{key}-{number}" for number in range(8)]
    with frail.nodes.majority_paused():
        for result in [frail.send("unreachable-raise", name) for name in names]:
            with pytest.raises(QuorumUnreachable):
                result.get(timeout=60)

    later = {"countdown": LONGEST_BACKOFF + 0.5}
    results = [frail.send("unreachable-raise", name, **later) for name in names]

    assert [result.get(timeout=60) for result in results] == [r.id for r in results]


@pytest.mark.several_nodes
@pytest.mark.long
def test_nodes_without_memory_are_waited_for(
    redis_server: str, site: Site, key: str
) -> None:
    """Jobs wait until the quarantine of nodes that forgot ends, and then run."""
    with short_quarantine(site, 3) as here:
        for node in here.nodes.dev.nodes:
            node.command("FLUSHALL")
        result = here.send("quick", key)
        until(lambda: result.state == states.RETRY)

        assert result.get(timeout=60) == result.id
        assert len(here.stage.runs(key)) == 1
        assert "quarantine" in here.logs_of_the_package()


def test_job_published_before_init_runs_soon_after_it(
    redis_server: str, site: Site, key: str
) -> None:
    """Nodes say that they vote in a minute, and ``init`` lets them vote at once."""
    with (
        lock_nodes(3, initialize=False) as nodes,
        site.deploy(nodes, concurrency=1) as here,
    ):
        result = here.send("quick", key)
        here.until_received(result.id, times=2)
        assert here.stage.runs(key) == []
        runtime_of(here.app).redlock.initialize()

        assert result.get(timeout=A_QUARANTINE / 2) == result.id


def test_outage_is_two_lines_in_the_log(
    deploy: Deploy, frail_nodes: LockNodes, key: str
) -> None:
    """Its begin and its end, for any number of tries; Celery's own lines are short."""
    here = deploy(frail_nodes, concurrency=1)
    assert here.send("quick", f"{key}-before").get(timeout=60)
    before = len(here.logs().splitlines())
    with frail_nodes.majority_paused():
        jobs = [here.send("quick", f"{key}-{number}") for number in range(4)]
        for job in jobs:
            here.until_received(job.id, times=4)

    assert [job.get(timeout=60) for job in jobs] == [job.id for job in jobs]

    until(lambda: "The lock nodes vote again" in here.logs_of_the_package())
    lines = here.logs().splitlines()[before:]
    ours = [line for line in lines if " celery_redlock" in line]
    tries = sum("] retry: " in line for line in lines)
    began, ended = (line for line in ours if "outage_log" in line)
    assert "4 calls of this process got no lock in" in ended
    assert f"in {tries} tries (retry {tries})" in ended
    assert f"{jobs[0].id}] will be republished" in began
    assert [line for line in ours if key in line] == [began]
    assert [
        line for line in lines if line not in (began, ended) and len(line) > 300
    ] == []


def test_worker_starts_without_its_nodes(
    deploy: Deploy, frail_nodes: LockNodes, key: str
) -> None:
    """A worker without its lock nodes starts and warns; jobs run when nodes are up."""
    with frail_nodes.majority_paused():
        here = deploy(frail_nodes, concurrency=1)
        assert "Tasks that need a lock do not run until " in here.logs_of_the_package()

    assert here.send("quick", key).get(timeout=60)
