"""The quarantine of a node that lost its memory: its clients, and the reports."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.quorum import VoteKind
from celery_redlock.errors import QuorumUnreachable
from tests.nodes.support import (
    MAX_TTL,
    PATIENT,
    QUARANTINE,
    SHORT,
    client,
    kinds,
    until,
    until_nothing_is_left,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes


def test_worker_that_looks_at_the_nodes_starts_the_wait(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """`check` starts the quarantine of nodes that forgot, before the first acquire."""
    nodes = start_nodes(3, max_ttl=MAX_TTL)
    with client(nodes, **SHORT) as redlock:
        for node in nodes.nodes:
            node.restart()
        with client(nodes, **SHORT) as starting:
            report = starting.check()
        checked_at = time.monotonic()
        assert kinds(report.ballot) == [VoteKind.QUARANTINED] * 3

        redlock.release(redlock.acquire("k", wait=10))

        assert time.monotonic() - checked_at < QUARANTINE + 2 * PATIENT + 1


def test_restarted_node_serves_those_who_hold_a_lock(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """In quarantine a node accepts renewals and the release of a valid lease."""
    nodes = start_nodes(3)
    with client(nodes) as redlock:
        lease = redlock.acquire(key)
        nodes.nodes[0].restart()
        assert kinds(redlock.check().ballot)[0] in (
            VoteKind.QUARANTINED,
            VoteKind.SILENT,
        )

        until(lambda: redlock.extend(lease) and values(nodes, key)[0])

        lease.ensure(network=True)
        assert redlock.release(lease) >= 2
        until_nothing_is_left(nodes)


def test_holder_outlives_the_restart_of_all_nodes(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A holder may renew its valid lease on all nodes; no other client gets a vote."""
    nodes = start_nodes(3)
    with client(nodes) as redlock, client(nodes) as rival:
        lease = redlock.acquire(key)
        for node in nodes.nodes:
            node.restart()
        with pytest.raises(QuorumUnreachable):
            rival.acquire(key, wait=0.5)

        until(lambda: redlock.extend(lease) and None not in values(nodes, key))

        with pytest.raises(QuorumUnreachable, match="in quarantine"):
            rival.acquire(key)
        lease.ensure(network=True)
        redlock.release(lease)


# -- Errors and reports ------------------------------------------------------------


def test_named_wait_is_the_one_to_wait(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """The error and the report say for how long; after that the first try succeeds."""
    nodes = start_nodes(3, max_ttl=MAX_TTL)
    with client(nodes, **SHORT) as redlock:
        redlock.release(redlock.acquire(key))
        for node in nodes.nodes[:2]:
            node.command("FLUSHALL")

        with pytest.raises(QuorumUnreachable) as refused:
            redlock.acquire(key)
        report = redlock.check()

        error = refused.value
        assert error.retry_after is not None
        assert 0 < error.retry_after <= QUARANTINE
        assert report.retry_after is not None
        assert 0 < report.retry_after <= error.retry_after
        assert not report.has_quorum
        end = redlock.clock.monotonic() + error.retry_after
        until(lambda: redlock.clock.monotonic() >= end)
        redlock.release(redlock.acquire(key))


def test_quarantine_has_its_own_words(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """The error says that a node is in quarantine, not that it is down or held."""
    nodes = start_nodes(5)
    with client(nodes) as redlock:
        lease = redlock.acquire(key)
        nodes.nodes[0].command("FLUSHALL")
        nodes.nodes[1].command("FLUSHALL")
        nodes.nodes[2].kill()

        with pytest.raises(QuorumUnreachable) as refused:
            redlock.acquire(key)

        error, labels = refused.value, redlock.labels
        assert kinds(error.ballot).count(VoteKind.QUARANTINED) == 2
        said = re.findall(r"(\S+) is in quarantine for (\d+\.\d) s", str(error))
        assert {label for label, _ in said} == {labels[0], labels[1]}
        assert all(60 < float(seconds) < 62.3 for _, seconds in said)
        assert labels[2] in str(error)
        assert "(need 3)" in str(error)
        assert "They vote again by themselves in" in str(error)
        report = redlock.check()
        assert report.retry_after is not None
        assert 60 < report.retry_after < 62.3
        assert sum("is in quarantine" in problem for problem in report.problems) == 2
        redlock.release(lease)


def test_wait_is_not_named_where_waiting_is_no_use(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """With too few nodes up, the end of a quarantine would change nothing."""
    nodes = start_nodes(3)
    with client(nodes) as redlock:
        redlock.check()
        nodes.nodes[0].kill()
        nodes.nodes[1].kill()
        nodes.nodes[2].command("FLUSHALL")
        redlock.check()

        with pytest.raises(QuorumUnreachable) as refused:
            redlock.acquire(key)

        assert refused.value.retry_after is None
