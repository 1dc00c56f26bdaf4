"""Findings about nodes and tasks that a worker logs when it starts."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from celery_redlock.devnodes import DevNodes
from tests.harness.deployment import Deploy, Deployment
from tests.harness.lock_nodes import LockNodes
from tests.harness.waiting import until

FOUND = re.compile(
    r" (\w+) MainProcess celery_redlock\.operations\.doctor\] The doctor found "
    r"([^:]+): ([a-z0-9, ()-]+)\."
)


@pytest.fixture
def six_nodes(start_nodes: Callable[..., DevNodes]) -> LockNodes:
    """Give six nodes, one of which evicts keys when its memory is full."""
    nodes = start_nodes(6)
    nodes.nodes[0].command("CONFIG", "SET", "maxmemory", "50mb")
    nodes.nodes[0].command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    return LockNodes(nodes)


def findings(deployment: Deployment) -> list[tuple[str, str, str]]:
    """Return the lines about findings: level, number of findings, and their codes."""
    return FOUND.findall(deployment.logs())


def test_worker_says_all_findings_in_one_line_at_its_start(
    deploy: Deploy, six_nodes: LockNodes
) -> None:
    """The findings are those of `doctor`: on single nodes, all nodes and tasks."""
    deployment = deploy(six_nodes)

    until(lambda: findings(deployment), 20, what="the findings")
    deployment.send("quick", "said-once").get(timeout=60)

    ((level, number, codes),) = findings(deployment)
    assert level == "ERROR"
    assert number.startswith("1 error, ")
    assert codes.split(", ")[0] == "eviction"
    assert {"even-nodes", "one-host", "result-backend"} <= {*codes.split(", ")}


@pytest.mark.long
def test_hung_node_does_not_delay_the_start(
    deploy: Deploy, six_nodes: LockNodes
) -> None:
    """The worker takes tasks while the diagnosis still waits for the node."""
    six_nodes.dev.nodes[3].pause()

    # The vote at the start waits so long for the node, and then the diagnosis does.
    deployment = deploy(six_nodes, settings={"redlock_connect_timeout": 15})
    deployment.send("quick", "meanwhile").get(timeout=60)

    assert findings(deployment) == []
    six_nodes.dev.nodes[3].resume()
    until(lambda: findings(deployment), 30.0, what="the findings")
