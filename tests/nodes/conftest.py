"""Fixtures: a node, two services, nodes with clocks to step, waits without polling."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_redlock.devnodes import DevNode, DevNodes
from celery_redlock.locks import wait_queue
from celery_redlock.locks.redlock import Redlock
from tests.harness.clocks import nodes_with_clocks
from tests.nodes.clocks import Clocks, clock_environment
from tests.nodes.support import client, until_all_vote

_NEVER = 600.0  # seconds: longer than any test


@pytest.fixture
def node(redis_server: str) -> Iterator[DevNode]:
    """Give one running server that belongs to no deployment."""
    node = DevNode(binary=redis_server)
    node.start()
    yield node
    node.stop()


@pytest.fixture
def redlock(shared_nodes: DevNodes) -> Iterator[Redlock]:
    """Give a service that is connected to all shared nodes."""
    with client(shared_nodes) as redlock:
        until_all_vote(redlock)
        yield redlock


@pytest.fixture
def rival(shared_nodes: DevNodes) -> Iterator[Redlock]:
    """Give another service that is connected to all shared nodes."""
    with client(shared_nodes) as redlock:
        until_all_vote(redlock)
        yield redlock


@pytest.fixture
def start_clocks(redis_server: str, tmp_path: Path) -> Iterator[Callable[..., Clocks]]:
    """Give a function that starts nodes with clocks that can be stepped."""
    if sys.platform != "linux":
        pytest.skip("libfaketime replaces the clock of a server only on Linux")
    clock_environment(redis_server)
    with contextlib.ExitStack() as stack:

        def start(count: int, max_ttl: float = 60.0) -> Clocks:
            nodes, clocks = nodes_with_clocks(
                count, redis_server, tmp_path, max_ttl=max_ttl
            )
            stack.enter_context(nodes)
            return Clocks(nodes, clocks)

        yield start


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no waiter look at its lock unless it is woken."""
    monkeypatch.setattr(wait_queue, "_LEAST_LOOK_EVERY", _NEVER)
    monkeypatch.setattr(wait_queue, "_LOOK_EVERY", _NEVER)
