"""What a diagnosis finds of clocks that differ or drift."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.redlock import Redlock
from celery_redlock.devnodes import DevNode, ServerOptions
from celery_redlock.diagnostics import diagnose
from tests.cli.findings import ERROR, codes, found_on, label, the
from tests.nodes.clocks import clock_environment
from tests.nodes.support import PATIENT, client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def start_with_clock(redis_server: str) -> Iterator[Callable[[str], DevNode]]:
    """Give a function that starts a server whose clock is set as ``FAKETIME`` says."""
    faked = clock_environment(redis_server)
    with contextlib.ExitStack() as stack:

        def start(setting: str) -> DevNode:
            environment = {**faked, "FAKETIME": setting}
            options = ServerOptions(environment=environment)
            node = DevNode(binary=redis_server, options=options)
            stack.callback(node.stop)
            node.start()
            return node

        yield start


def with_clocks(
    start: Callable[[str], DevNode], *settings: str
) -> tuple[list[DevNode], list[str]]:
    """Start a deployment of nodes with these clocks."""
    nodes = [start(setting) for setting in settings]
    urls = [node.url for node in nodes]
    redlock = Redlock(urls, node_timeout=PATIENT)
    redlock.initialize()
    redlock.close()
    return nodes, urls


def test_clock_that_differs_is_found(
    start_with_clock: Callable[[str], DevNode],
) -> None:
    """One node of three is ten seconds ahead of the others."""
    nodes, urls = with_clocks(start_with_clock, "+0", "+10", "+0")

    found = found_on(urls)

    assert codes(found) == {"node-clock"}
    assert the("node-clock", found).fact.startswith(
        f"The clock of node {label(nodes[1])} is 10.0 s ahead"
    )


def test_clock_that_drifts_is_found(
    start_with_clock: Callable[[str], DevNode],
) -> None:
    """One node of three runs 5 % fast, which is more than locks allow for."""
    nodes, urls = with_clocks(start_with_clock, "+0", "+0 x1.05", "+0")

    with client(urls) as redlock:
        finding = the("clock-drift", diagnose(redlock, span=1.0))

    assert (finding.severity, finding.about) == (ERROR, label(nodes[1]))
    assert "too fast" in finding.fact


def test_our_own_clock_is_found_to_be_off(
    start_with_clock: Callable[[str], DevNode],
) -> None:
    """When all nodes differ from us by more than a quarter of max_ttl, it is ours."""
    _, urls = with_clocks(start_with_clock, "+20", "+20", "+20")

    found = found_on(urls)

    assert codes(found) == {"client-clock"}
    finding = the("client-clock", found)
    assert "is 20.0 s behind those of the nodes" in finding.fact
    assert "15 s (max_ttl / 4)" in finding.fact
