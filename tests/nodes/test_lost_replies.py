"""Replies and releases that are late or lost: nothing is misread, no lock is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.errors import LockHeld, QuorumUnreachable
from celery_redlock.locking import lock
from tests.harness.tcp import proxies
from tests.nodes.support import (
    client,
    locks,
    until,
    until_all_vote,
    until_nothing_is_left,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes


@pytest.mark.every_server
def test_late_replies_are_never_taken_for_others(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A late reply about one key never counts for the next key."""
    nodes = start_nodes(3)
    with client(nodes, node_timeout=0.02) as redlock, client(nodes) as rival:
        redlock.release(redlock.acquire(key))
        taken = rival.acquire(f"{key}:taken")
        for number in range(30):
            for node in nodes.nodes[:2]:
                node.pause()
            with pytest.raises(QuorumUnreachable):
                redlock.acquire(f"{key}:{number}")
            for node in nodes.nodes[:2]:
                node.resume()
            # Two late replies to that acquire are on their way; both grant it.
            with pytest.raises((LockHeld, QuorumUnreachable)):
                redlock.acquire(taken.key)
        assert rival.extend(taken)
        assert rival.release(taken) >= 2
        until_nothing_is_left(nodes)


@pytest.mark.parametrize("cut", [False, True], ids=["late", "lost"])
def test_replies_that_are_lost_leave_no_lock(
    three_nodes: DevNodes, key: str, *, cut: bool
) -> None:
    """Nodes that granted, but whose reply was late or lost, get a release."""
    with (
        proxies(three_nodes) as lines,
        client([line.url for line in lines]) as redlock,
    ):
        redlock.initialize()
        redlock.release(redlock.acquire(key))
        for line in lines[:2]:
            line.hold_replies()
        with pytest.raises(QuorumUnreachable):
            redlock.acquire(key)
        for line in lines[:2]:
            line.cut() if cut else line.resume()
            line.mend()

        until_all_vote(redlock)
        until_nothing_is_left(three_nodes)


def test_release_that_was_lost_is_told_again(three_nodes: DevNodes, key: str) -> None:
    """A node that was cut off at the release gets it when it is reachable again."""
    with (
        proxies(three_nodes) as lines,
        client([line.url for line in lines]) as redlock,
    ):
        redlock.initialize()
        with lock(redlock, key, ttl=60) as lease:
            until(lambda: None not in values(three_nodes, key))
            lines[0].cut()
            assert lease.is_valid()
        assert values(three_nodes, key)[0]
        until(lambda: values(three_nodes, key)[1:] == [None, None])

        lines[0].mend()

        until_nothing_is_left(three_nodes, key, seconds=8)


def test_release_by_a_node_that_kept_its_disk(three_nodes: DevNodes, key: str) -> None:
    """A node that died with the lock in its snapshot gets the release when it is up."""
    first = three_nodes.nodes[0]
    with client(three_nodes) as redlock:
        until_all_vote(redlock)
        lease = redlock.acquire(key)
        until(lambda: None not in values(three_nodes, key))
        first.command("SAVE")
        first.kill()
        redlock.release(lease)
        first.restart(keep_memory=True)
        assert values(three_nodes, key)[0]

        def is_released() -> bool:
            redlock.check()  # the next request sends it
            return not locks(three_nodes, key)

        until(is_released)


def test_acquire_overtaken_by_its_release_leaves_nothing(
    three_nodes: DevNodes, key: str
) -> None:
    """If a connection breaks with an acquire on it, the node gets the release again.

    The node reads the acquire only after the client has closed that connection and
    opened another one. So the node performs the acquire after the first release.
    """
    with (
        proxies(three_nodes) as lines,
        client([line.url for line in lines], connect_timeout=0.2) as redlock,
    ):
        redlock.initialize()
        redlock.release(redlock.acquire(key))
        for number in range(5):
            three_nodes.nodes[0].pause()
            lease = redlock.acquire(f"{key}:{number}")
            redlock.release(lease)
            lines[0].cut()
            lines[0].mend()
            redlock.check()
            three_nodes.nodes[0].resume()

            def is_told() -> bool:
                redlock.check()
                return not locks(three_nodes, key)

            until(is_told)
