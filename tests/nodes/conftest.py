"""What tests ask for by name: a node, services, clocks to step, waits undisturbed."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core import waiting
from celery_redlock.devnodes import DevNode, DevNodes, ServerOptions
from tests.nodes.clocks import Clocks, clock_environment
from tests.nodes.support import client
from tests.nodes.waiters import LONG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from celery_redlock.core.redlock import Redlock


@pytest.fixture
def node(redis_server: str) -> Iterator[DevNode]:
    """Give one running server, which nobody has declared a node of a deployment."""
    node = DevNode(binary=redis_server)
    node.start()
    yield node
    node.stop()


@pytest.fixture
def redlock(shared_nodes: DevNodes) -> Iterator[Redlock]:
    """Give a service on the shared nodes, which know its scripts."""
    with client(shared_nodes) as redlock:
        assert redlock.check().problems == []
        yield redlock


@pytest.fixture
def rival(shared_nodes: DevNodes) -> Iterator[Redlock]:
    """Give another service on the same nodes, with connections of its own."""
    with client(shared_nodes) as redlock:
        yield redlock


@pytest.fixture
def start_clocks(redis_server: str, tmp_path: Path) -> Iterator[Callable[..., Clocks]]:
    """Give a function that starts nodes with clocks that can be stepped."""
    if sys.platform != "linux":
        pytest.skip("only Linux lets libfaketime come before a server's clock")
    environment = clock_environment(redis_server)
    with contextlib.ExitStack() as stack:

        def start(count: int, max_ttl: float = 60.0) -> Clocks:
            files = [tmp_path / f"clock-{number}" for number in range(count)]
            nodes = DevNodes(count, max_ttl=max_ttl)
            for index, file in enumerate(files):
                file.write_text("+0\n")
                options = ServerOptions(
                    environment={**environment, "FAKETIME_TIMESTAMP_FILE": str(file)}
                )
                nodes.nodes[index] = DevNode(binary=redis_server, options=options)
            stack.enter_context(nodes)
            return Clocks(nodes, files)

        yield start


@pytest.fixture
def no_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody look again by itself, so that what wakes a waiter is a wake-up."""
    monkeypatch.setattr(waiting, "_LEAST_LOOK_EVERY", 10 * LONG)
    monkeypatch.setattr(waiting, "_LOOK_EVERY", 10 * LONG)
