"""Nodes that restart, most of them or all: with their data, and without."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from celery_redlock.devnodes import DevNodes, ServerOptions
from celery_redlock.errors import LockUnavailable
from celery_redlock.operations.release import Operator, ask, release
from tests.nodes.support import (
    BRIEF,
    MAX_TTL,
    SHORT,
    client,
    granted,
    until,
    until_all_vote,
)

FLOOR = "Its next fences are greater than its own time"


@pytest.mark.parametrize(("count", "lost"), [(1, 1), (3, 2), (5, 5)])
def test_majority_that_restarts_grants_nothing_for_a_while(
    start_nodes: Callable[..., DevNodes],
    key: str,
    caplog: pytest.LogCaptureFixture,
    count: int,
    lost: int,
) -> None:
    """No lock is granted for max_ttl; then the nodes recover alone, with a warning."""
    nodes = start_nodes(count, max_ttl=MAX_TTL)
    with client(nodes, **SHORT) as redlock:
        lease = granted(redlock, key)
        for node in nodes.nodes[:lost]:
            node.restart()
        restarted_at = time.monotonic()

        successor = redlock.acquire(key, wait=20)

        assert time.monotonic() - restarted_at >= MAX_TTL
        assert successor.started_at > lease.until
        assert successor.fence > lease.fence
        assert FLOOR in caplog.text
        redlock.release(successor)
        until_all_vote(redlock)


@pytest.mark.parametrize("count", [1, 3])
def test_job_outlives_the_restart_of_all_nodes_that_keep_their_data(
    start_nodes: Callable[..., DevNodes], key: str, count: int
) -> None:
    """A node that has the lock on its disk renews it before it votes again.

    No other client gets it before it is released, also when the nodes vote again.
    """
    options = {"ttl": BRIEF, "max_ttl": BRIEF}
    on_disk = ServerOptions(config={"appendonly": "yes", "appendfsync": "always"})
    nodes = start_nodes(count, max_ttl=BRIEF, options=on_disk)
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


def test_release_by_an_operator_that_is_on_no_disk_is_undone_by_a_restart(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """The node renews the lock that it finds on its disk: two hold it."""
    nodes = start_nodes(1)
    with client(nodes) as redlock, client(nodes) as rival:
        lease = granted(redlock, key)
        nodes.nodes[0].command("SAVE")
        asked = ask(rival, key)
        release(rival, asked, asked.values, Operator("alice", "a test"))
        successor = granted(rival, key)

        nodes.nodes[0].kill()
        nodes.nodes[0].restart(keep_memory=True)

        until(lambda: redlock.extend(lease))
        assert lease.is_valid()
        assert successor.is_valid()
        assert successor.fence > lease.fence
