"""The quarantine of a node that lost its memory: its clients, and the reports."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.devnodes import ServerOptions
from celery_redlock.errors import LockUnavailable, QuorumUnreachable
from celery_redlock.members.view import View
from celery_redlock.wire.quorum import VoteKind
from tests.nodes.support import (
    client,
    kinds,
    until,
    until_nothing_is_left,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes


# A quarantine of 3 s, and time enough for an answer within it on a busy machine.
CALM: dict[str, Any] = {"ttl": 2.0, "max_ttl": 2.0, "node_timeout": 0.6}


def configurations(nodes: DevNodes) -> list[str]:
    """Return what each node has stored: its view, or why it has none."""
    return [node.command("HGET", "redlock:meta", "config") for node in nodes.nodes]


def test_worker_that_looks_at_the_nodes_starts_the_wait(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """`check` starts the quarantine of nodes that forgot, before the first acquire."""
    nodes = start_nodes(3, max_ttl=CALM["max_ttl"])
    with client(nodes, **CALM) as redlock:
        for node in nodes.nodes:
            node.restart()
        with client(nodes, **CALM) as starting:
            until(lambda: kinds(starting.check().ballot) == [VoteKind.QUARANTINED] * 3)
        # A node starts its wait when it notes a view, and a new wait needs a new view.
        view, *others = configurations(nodes)
        assert View.parse(view)
        assert others == [view] * 2

        redlock.release(redlock.acquire("k", wait=20))

        assert configurations(nodes) == [view] * 3


def test_restarted_node_serves_those_who_hold_a_lock(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """The lease is renewed on the others, and on the node again when it votes."""
    nodes = start_nodes(3, max_ttl=5.0)
    with client(nodes, ttl=5.0, max_ttl=5.0, node_timeout=0.6) as redlock:
        lease = redlock.acquire(key)
        nodes.nodes[0].restart()

        def is_whole_again() -> bool:
            assert redlock.extend(lease)
            redlock.check()
            return bool(values(nodes, key)[0])

        until(is_whole_again, 30)

        lease.ensure(network=True)
        assert redlock.release(lease) >= 2
        until_nothing_is_left(nodes)


@pytest.mark.parametrize("count", [1, 3])
def test_job_outlives_the_restart_of_all_nodes_that_keep_their_data(
    start_nodes: Callable[..., DevNodes], key: str, count: int
) -> None:
    """A node that has the lock on its disk renews it before it votes again.

    No other client gets it before it is released, also when the nodes vote again.
    """
    options = {**CALM, "ttl": 3.0, "max_ttl": 3.0}
    on_disk = ServerOptions(config={"appendonly": "yes", "appendfsync": "always"})
    nodes = start_nodes(count, max_ttl=3.0, options=on_disk)
    with client(nodes, **options) as redlock, client(nodes, **options) as rival:
        lease = redlock.acquire(key)
        for node in nodes.nodes:
            node.restart(keep_memory=True)
        until(lambda: redlock.extend(lease))
        restarted_until = lease.until

        def votes_again() -> bool:
            assert redlock.extend(lease) or lease.is_valid()
            with pytest.raises(LockUnavailable):
                rival.acquire(key)
            return rival.check().has_quorum

        until(votes_again, 30)

        until(lambda: redlock.extend(lease))
        assert lease.until > restarted_until
        redlock.release(lease)
        rival.release(rival.acquire(key, wait=5))


def test_holder_does_not_outlive_the_restart_of_a_majority(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Nodes that forgot it do not count in a renewal; no other client is granted it.

    If they counted, two holders could renew on different servers of one name.
    """
    nodes = start_nodes(3)
    with client(nodes) as redlock, client(nodes) as rival:
        lease = redlock.acquire(key)
        for node in nodes.nodes:
            node.restart()

        with pytest.raises(QuorumUnreachable):
            rival.acquire(key, wait=0.5)

        assert not redlock.extend(lease)
        assert lease.is_valid()
        with pytest.raises(QuorumUnreachable, match="in quarantine"):
            rival.acquire(key)
        redlock.release(lease)


# -- Errors and reports ------------------------------------------------------------


def test_named_wait_is_the_one_to_wait(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """The error and the report say for how long; after that the first try succeeds."""
    nodes = start_nodes(3, max_ttl=CALM["max_ttl"])
    with client(nodes, **CALM) as redlock:
        redlock.release(redlock.acquire(key))
        for node in nodes.nodes[:2]:
            node.command("FLUSHALL")

        with pytest.raises(QuorumUnreachable) as refused:
            redlock.acquire(key)
        report = redlock.check()

        error = refused.value
        assert error.retry_after is not None
        assert 0 < error.retry_after <= redlock.timing.quarantine
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
        began = redlock.clock.monotonic()
        nodes.nodes[0].command("FLUSHALL")
        nodes.nodes[1].command("FLUSHALL")
        nodes.nodes[2].kill()

        with pytest.raises(QuorumUnreachable) as refused:
            redlock.acquire(key)

        error, labels = refused.value, redlock.labels
        assert kinds(error.ballot).count(VoteKind.QUARANTINED) == 2
        said = re.findall(r"(\S+) is in quarantine for (\d+\.\d) s", str(error))
        assert {label for label, _ in said} == {labels[0], labels[1]}
        least = 60 - (redlock.clock.monotonic() - began)
        assert all(least < float(seconds) < 62.3 for _, seconds in said)
        assert labels[2] in str(error)
        assert "(need 3)" in str(error)
        assert "They vote again by themselves in" in str(error)
        report = redlock.check()
        assert report.retry_after is not None
        least = 60 - (redlock.clock.monotonic() - began)
        assert least < report.retry_after < 62.3
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
