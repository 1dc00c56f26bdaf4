"""``redlock dev`` and ``bench``: nodes to try, and what a lock costs."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest
import redis

from celery_redlock.core.redlock import Redlock
from tests.nodes.support import until_nothing_is_left

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes
    from tests.cli.project import Project


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_dev_runs_nodes_until_it_is_ended(
    project: Project, redis_server: str, ended_by: signal.Signals
) -> None:
    """They vote at once; Ctrl-C, and what ends a service, ends them as well."""
    with project.start("dev", "--nodes", "3", "--json") as dev:
        urls = json.loads(dev.line())["redlock_nodes"]
        redlock = Redlock(urls)
        assert redlock.acquire("k").is_valid()
        redlock.close()
        run = dev.interrupt(ended_by)

    assert run.code == 0, run.err
    for url in urls:
        with pytest.raises(redis.ConnectionError), redis.Redis.from_url(url) as client:
            client.ping()


def test_dev_prints_settings_that_can_be_pasted(
    project: Project, redis_server: str
) -> None:
    """What stands there, indented, is Python that sets the nodes and max_ttl."""
    with project.start("dev", "--nodes", "2", "--max-ttl", "40") as dev:
        lines = [dev.line()]
        while "Ctrl-C" not in lines[-1]:
            lines.append(dev.line())
        dev.interrupt()

    pasted = "\n".join(line.strip() for line in lines if line.startswith("    "))
    settings: dict[str, object] = {}
    exec(pasted.replace("app.conf.", ""), settings)  # noqa: S102  (our own output)
    assert len(settings["redlock_nodes"]) == 2  # type: ignore[arg-type]
    assert settings["redlock_max_ttl"] == 40


def test_bench_measures_a_majority_and_each_node(
    project: Project, three_nodes: DevNodes
) -> None:
    """Percentiles, a histogram of all that was measured, and no lock is left."""
    run = project.redlock("bench", "--count", "20", "--json")

    assert run.code == 0
    for measured in ("acquire", "release", "acquire and release"):
        times = run.document["quorum"][measured]
        assert 0 < times["p50"] <= times["p95"] <= times["p99"] <= times["max"]
    assert len(run.document["nodes"]) == 3
    assert sum(bar["count"] for bar in run.document["histogram"]) == 20
    until_nothing_is_left(three_nodes, "bench")


def test_bench_works_with_a_minority_down(
    project: Project, three_nodes: DevNodes
) -> None:
    """What cannot be measured is named."""
    three_nodes.nodes[0].kill()

    run = project.redlock("bench", "--count", "5")

    assert run.code == 0
    assert f"127.0.0.1:{three_nodes.nodes[0].port}/0 refused the connection" in run.out


def test_bench_without_a_quorum_exits_with_3(
    project: Project, three_nodes: DevNodes
) -> None:
    """No lock, no figures."""
    for node in three_nodes.nodes[:2]:
        node.kill()

    run = project.redlock("bench")

    assert run.code == 3
    assert "(need 2)" in run.err
