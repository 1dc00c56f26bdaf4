"""Findings about nodes and tasks that a worker logs when it starts."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.harness.lock_nodes import LockNodes
from tests.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes
    from tests.harness.deployment import Deploy, Deployment

FINDING = re.compile(
    r" (\w+) MainProcess celery_redlock\.operations\.doctor\] (.*\[([a-z-]+)\])$",
    re.MULTILINE,
)


@pytest.fixture
def four_nodes(start_nodes: Callable[..., DevNodes]) -> LockNodes:
    """Give four nodes, one of which evicts keys when its memory is full."""
    nodes = start_nodes(4)
    nodes.nodes[0].command("CONFIG", "SET", "maxmemory", "50mb")
    nodes.nodes[0].command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    return LockNodes(nodes)


def findings(deployment: Deployment) -> list[tuple[str, str, str]]:
    """Return each finding in the log: its level, its text and its code."""
    return FINDING.findall(deployment.logs())


def test_worker_says_each_finding_once_at_its_start(
    deploy: Deploy, four_nodes: LockNodes
) -> None:
    """The findings are those of `doctor`: on single nodes, all nodes and tasks."""
    deployment = deploy(four_nodes)

    def codes(level: str) -> list[str]:
        return [code for of, _, code in findings(deployment) if of == level]

    expected = {"even-nodes", "one-host", "result-backend"}
    until(lambda: "eviction" in codes("ERROR") and expected <= {*codes("INFO")}, 20)
    deployment.send("quick", "said-once").get(timeout=10)

    assert {*Counter(findings(deployment)).values()} == {1}
    assert codes("ERROR") == ["eviction"]


def test_what_the_vote_has_shown_is_not_said_again(
    deploy: Deploy, four_nodes: LockNodes
) -> None:
    """A node that is down is in the log line about the vote, and in no other."""
    four_nodes.dev.nodes[3].kill()
    label = four_nodes.urls[3].removeprefix("redis://")
    deployment = deploy(four_nodes)

    until(lambda: "[eviction]" in deployment.logs(), 20.0)

    (line,) = [
        line
        for line in deployment.logs_of_the_package().splitlines()
        if label in line and "celery_redlock.core.transport.node_log]" not in line
    ]
    assert "3 of 4 nodes vote" in line


def test_hung_node_does_not_delay_the_start(
    deploy: Deploy, four_nodes: LockNodes
) -> None:
    """The worker takes tasks while the diagnosis still waits for the node."""
    four_nodes.dev.nodes[3].pause()

    deployment = deploy(four_nodes, settings={"redlock_connect_timeout": 8})
    deployment.send("quick", "meanwhile").get(timeout=10)

    assert findings(deployment) == []
    until(lambda: findings(deployment), 30.0, what="the findings")
