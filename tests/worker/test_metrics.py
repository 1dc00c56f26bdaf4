"""Metrics as Prometheus sees them: scraped over HTTP from real workers."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from celery_redlock.devnodes import DevNodes
from celery_redlock.devnodes.processes import free_port
from tests.harness.deployment import Deploy, Deployment
from tests.harness.lock_nodes import LockNodes
from tests.harness.metrics import PORT, Scraped
from tests.harness.stage import Stage
from tests.harness.waiting import until

Start: TypeAlias = "Callable[..., Metered]"
SHARED = "PROMETHEUS_MULTIPROC_DIR"


class Metered(Scraped):
    """The metrics of workers, and the workers."""

    def __init__(self, deployment: Deployment, port: int) -> None:
        super().__init__(port)
        self.deployment = deployment


def labels(nodes: LockNodes) -> list[str]:
    """Return the labels of the nodes."""
    return [url.removeprefix("redis://") for url in nodes.urls]


@pytest.fixture
def metered(
    deploy: Deploy,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Start:
    """Give a function that starts a worker with metrics."""

    def start(*nodes: LockNodes, shared: bool = True, **options: Any) -> Metered:
        port = free_port()
        monkeypatch.setenv(PORT, str(port))
        if shared:
            monkeypatch.setenv(SHARED, str(tmp_path))
        settings = {"imports": ["tests.worker.project.metered"]}
        return Metered(deploy(*nodes, settings=settings, **options), port)

    return start


@pytest.mark.several_nodes
def test_children_of_a_prefork_worker_are_scraped_from_its_parent(
    metered: Start, stage: Stage, key: str
) -> None:
    """A scrape sums waits, holds, conflicts, renewals and answers of all children."""
    it = metered(concurrency=4)
    deployment = it.deployment
    keys = [f"{key}-{number}" for number in range(3)]

    running = [deployment.begin("short", each) for each in keys]
    skipped = deployment.send("short", keys[0])
    skipped.get(timeout=60, propagate=False)
    it.until_at_least(3, "redlock_renewal_lateness_seconds_count", task="short")
    for each, result in zip(keys, running, strict=True):
        deployment.finish(each, result)
    it.until_at_least(3, "redlock_hold_seconds_count", task="short")

    assert len({run.pid for each in keys for run in stage.runs(each)}) == 3
    granted = {"task": "short", "outcome": "granted"}
    assert it.value("redlock_wait_seconds_count", **granted) == 3
    about = {"task": "short", "policy": "skip", "decision": "skip"}
    assert it.value("redlock_conflicts_total", **about) == 1
    assert it.value("redlock_hold_seconds_sum", task="short") > 1.5
    lateness, late = "redlock_renewal_lateness_seconds", "redlock_late_renewals_total"
    on_time = it.value(f"{lateness}_bucket", task="short", le="0.1")
    most = it.value(f"{lateness}_count", task="short") - on_time
    assert it.has(late)
    assert it.value(late, task="short") <= most  # a sixth of the ttl is 0.25 s
    for label in labels(deployment.nodes):
        assert it.value("redlock_node_latency_seconds_count", node=label) > 3
        assert it.value("redlock_node_answers_total", node=label, answer="granted") > 3


@pytest.mark.several_nodes
@pytest.mark.long
def test_new_processes_count_no_error_of_a_node(metered: Start, key: str) -> None:
    """Each asks with the view of no node first, and learns theirs by the answer."""
    it = metered(concurrency=1, options=("--max-tasks-per-child", "1"))
    for number in range(3):
        it.deployment.send("quick", f"{key}-{number}").get(timeout=60)

    for label in labels(it.deployment.nodes):
        it.until_at_least(3, "redlock_node_answers_total", node=label, answer="granted")
    answers = {
        dict(told)["answer"]
        for name, told in it.samples()
        if name == "redlock_node_answers_total"
    }
    assert "other_view" in answers
    assert not answers & {"refused", "silent"}


@pytest.mark.several_nodes
@pytest.mark.long
def test_loss_and_outage_are_scraped(
    metered: Start, frail_nodes: LockNodes, stage: Stage, key: str
) -> None:
    """With a majority hung, the lock is lost and the next call finds no quorum."""
    it = metered(frail_nodes)
    result = it.deployment.begin("short", key)

    with frail_nodes.majority_paused():
        it.until_at_least(1, "redlock_losses_total", task="short", decision="abort")
        outage = it.deployment.send("short", f"{key}-2")
        it.until_at_least(1, "redlock_outages_total", task="short", decision="retry")
        edge = it.samples()
    result.get(timeout=20, propagate=False)
    stage.open(f"{key}-2")
    outage.get(timeout=60)

    votes = [value for (name, _), value in edge.items() if name == "redlock_node_votes"]
    assert sorted(votes) == [0, 0, 0, 1, 1]
    assert edge["redlock_quorum", frozenset()] == 3
    assert edge["redlock_nodes", frozenset()] == 5


@pytest.mark.long
@pytest.mark.several_nodes
def test_node_that_restarts_is_scraped_in_quarantine(
    metered: Start, start_nodes: Callable[..., DevNodes]
) -> None:
    """An idle worker reports the votes of its nodes and the rest of a quarantine."""
    nodes = LockNodes(start_nodes(3))
    it = metered(nodes, pool="solo", shared=False, concurrency=1)
    label = labels(nodes)[0]
    assert it.value("redlock_node_votes", node=label) == 1

    nodes.dev.nodes[0].restart()

    it.until_at_least(1, "redlock_node_quarantine_seconds", node=label)
    assert it.value("redlock_node_up", node=label) == 1
    assert it.value("redlock_node_votes", node=label) == 0
    nodes.close()


@pytest.mark.long
@pytest.mark.several_nodes
def test_prefork_worker_without_a_folder_says_so(metered: Start) -> None:
    """No scrape sees the counts of the children; the worker runs all the same."""
    it = metered(shared=False)

    log = it.deployment.logs_of_the_package()
    assert "PROMETHEUS_MULTIPROC_DIR was not set" in log
    assert it.value("redlock_nodes") == 5


@pytest.mark.long
def test_beat_of_a_worker_leaves_the_port_to_it(
    metered: Start, key: str, tmp_path: Path
) -> None:
    """A scrape has the counts of the worker, and the log says what it has not."""
    schedule = str(tmp_path / "schedule")
    options = ("-B", "-s", schedule)
    it = metered(pool="solo", concurrency=1, shared=False, options=options)
    until(lambda: "beat: Starting..." in it.deployment.logs())

    it.deployment.finish(key, it.deployment.send("quick", key))

    it.until_at_least(1, "redlock_hold_seconds_count", task="quick")
    log = it.deployment.logs()
    assert log.count("The metrics are served at") == 1
    assert "The metrics are not served at" not in log
    assert "PROMETHEUS_MULTIPROC_DIR was not set" in log


@pytest.mark.long
def test_port_that_is_taken_stops_no_worker(metered: Start, key: str) -> None:
    """The second worker of a machine logs that the port is taken, and runs tasks."""
    it = metered(workers=2, pool="solo", concurrency=1, shared=False)

    assert it.deployment.logs().count("The metrics are served at") == 1
    assert it.deployment.logs().count("The metrics are not served at") == 1
    it.deployment.finish(key, it.deployment.send("quick", key))


@pytest.mark.long
@pytest.mark.several_nodes
@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_pools_of_one_process_need_no_folder(
    metered: Start, key: str, pool: str
) -> None:
    """Threads and greenlets count in the process that serves the metrics."""
    it = metered(pool=pool, shared=False)

    it.deployment.send("quick", key).get(timeout=60)

    it.until_at_least(1, "redlock_hold_seconds_count", task="quick")
    assert it.value("redlock_nodes") == 5
    assert "PROMETHEUS_MULTIPROC_DIR" not in it.deployment.logs()


def sockets_of(pid: int) -> set[str]:
    """Return the names of a process's sockets, which it may share with others."""
    links = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            links.add(str(handle.readlink()))
    return {link for link in links if link.startswith("socket:")}


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's /proc")
def test_child_that_replaces_another_does_not_keep_the_port(
    metered: Start, stage: Stage, key: str
) -> None:
    """A child with the port could outlive its parent, and block the next worker."""
    it = metered(concurrency=1)
    main = it.deployment.worker_cluster[0].container.pid
    it.deployment.send("quick", key).get(timeout=60)
    (first,) = stage.runs(key)

    os.kill(first.pid, signal.SIGKILL)
    result = it.deployment.begin("job", f"{key}-2")

    (second,) = stage.runs(f"{key}-2")
    table = Path("/proc/net/tcp").read_text(encoding="ascii")
    (row,) = [r for r in table.splitlines() if f":{it.port:04X} 00000000:0000 0A" in r]
    listening = f"socket:[{row.split()[9]}]"
    assert second.pid != first.pid
    assert listening in sockets_of(main)
    assert listening not in sockets_of(second.pid)
    it.deployment.finish(f"{key}-2", result)
    # The counts of the killed child are still served.
    assert it.value("redlock_hold_seconds_count", task="quick") == 1
