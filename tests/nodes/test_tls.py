"""Nodes with TLS: all requests use it, and an untrusted node gets no vote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.quorum import VoteKind
from celery_redlock.devnodes import DevNodes, ServerOptions, redis_servers
from celery_redlock.errors import RedlockError
from celery_redlock.locking import lock
from tests.conftest import missing
from tests.nodes.support import (
    client,
    kinds,
    refusal,
    until,
    until_all_vote,
    until_nothing_is_left,
    use,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def tls_nodes(
    certificate: tuple[Path, Path], request: pytest.FixtureRequest
) -> Iterator[DevNodes]:
    """Give three nodes that speak TLS and nothing else."""
    files = str(certificate[0]), str(certificate[1])
    options = ServerOptions(certificate=files, password="pass word")
    for binary in redis_servers():
        nodes = DevNodes(3, binary=binary, options=options)
        try:
            nodes.start()
        except RedlockError as error:
            if "tls" not in str(error):
                raise
            continue
        yield nodes
        nodes.stop()
        return
    missing("no redis-server here was built with TLS")


def test_nodes_are_reached_by_tls(tls_nodes: DevNodes, key: str) -> None:
    """With rediss:// all data goes over TLS, also data longer than one record."""
    assert all(url.startswith("rediss://") for url in tls_nodes.urls)
    with client(tls_nodes) as redlock:
        until_all_vote(redlock)
        use(redlock, key)
        use(redlock, "k" * 40_000)
        with lock(redlock, key, ttl=1) as lease:
            end = lease.until
            until(lambda: lease.until > end + 0.7)
    until_nothing_is_left(tls_nodes)


def test_tls_nodes_recover_their_fences(
    tls_nodes: DevNodes, certificate: tuple[Path, Path]
) -> None:
    """A hundred kilobytes of counters, in both directions, fit through TLS."""
    short: dict[str, Any] = {"ttl": 0.9, "max_ttl": 1.0}
    with client(tls_nodes, **short, prefix="short") as redlock:
        redlock.initialize()
        for node in tls_nodes.nodes:
            fields = [word for n in range(4096) for word in (n, 4 * 10**15 + n)]
            node.command("HSET", "short:fence", *fields)
        tls_nodes.nodes[0].command("DEL", "short:meta", "short:fence")

        until_all_vote(redlock)

        assert tls_nodes.nodes[0].command("HGET", "short:fence", 17) == str(
            4 * 10**15 + 17
        )


def test_certificate_that_is_not_trusted_is_an_error_of_that_node(
    tls_nodes: DevNodes,
) -> None:
    """A node with an untrusted certificate gets no vote, and the error says why."""
    urls = [url.partition("?")[0] for url in tls_nodes.urls]
    with client(urls) as redlock:
        error = refusal(redlock)

    assert "certificate" in str(error).lower()
    assert "pass" not in str(error)


def test_plain_client_of_a_tls_node_is_told(tls_nodes: DevNodes) -> None:
    """redis:// to a node that speaks TLS fails, and does not hang."""
    urls = [f"redis://:x@127.0.0.1:{node.port}/0" for node in tls_nodes.nodes]
    with client(urls) as redlock:
        error = refusal(redlock)

    assert kinds(error.ballot) == [VoteKind.SILENT] * 3
