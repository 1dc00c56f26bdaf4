"""Unusual answers: an unknown script, a refused write, a foreign value, split votes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.quorum import VoteKind
from celery_redlock.errors import LockContended, LockHeld, QuorumUnreachable
from celery_redlock.locking import watchdog_of
from tests.nodes.support import (
    client,
    kinds,
    locks,
    until,
    until_nothing_is_left,
    values,
)

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes

pytestmark = pytest.mark.every_server


def test_forgotten_scripts_are_sent_again(three_nodes: DevNodes, key: str) -> None:
    """A node that has forgotten its scripts costs a round trip and no vote."""

    def forget() -> None:
        for node in three_nodes.nodes:
            node.command("SCRIPT", "FLUSH")

    with client(three_nodes) as redlock:
        for step in range(5):
            lease = redlock.acquire(f"{key}:{step}")
            forget()
            assert redlock.extend(lease)
            forget()
            assert redlock.inspect(lease.key).votes >= 2
            forget()
            assert redlock.release(lease) >= 1
            redlock.inspect(lease.key)
        until_nothing_is_left(three_nodes)


def test_fresh_nodes_get_the_scripts(five_nodes: DevNodes, key: str) -> None:
    """On new servers the first lock and its release reach all nodes."""
    with client(five_nodes) as redlock, client(five_nodes) as rival:
        redlock.check()  # connects to all of them
        lease = redlock.acquire(key)
        until(lambda: None not in values(five_nodes, key))

        rival.release_base(key, lease.token.partition(".")[0])
        watchdog_of(rival).resend_releases()  # to nodes that were still connecting

        until_nothing_is_left(five_nodes)


@pytest.mark.parametrize(
    "words", [("LPUSH", "x"), ("HSET", "field", "x")], ids=["list", "hash"]
)
def test_key_of_another_type_is_an_error_of_that_node(
    shared_nodes: DevNodes, redlock: Redlock, key: str, words: tuple[str, ...]
) -> None:
    """A list or hash under the name of a lock is no lock, and is not deleted."""
    command, *rest = words
    for node in shared_nodes.nodes[:2]:
        node.command(command, f"redlock:lock:{key}", *rest)
    lease = redlock.acquire(key)
    assert redlock.extend(lease)
    assert redlock.release(lease) == 3
    shared_nodes.nodes[2].command(command, f"redlock:lock:{key}", *rest)

    with pytest.raises(QuorumUnreachable, match="WRONGTYPE") as unreachable:
        redlock.acquire(key)

    assert kinds(unreachable.value.ballot).count(VoteKind.REFUSED) == 3
    until(lambda: len(locks(shared_nodes, key)) == 3)
    for node in shared_nodes.nodes[:3]:
        node.command("DEL", f"redlock:lock:{key}")


@pytest.mark.parametrize(
    "value", ["hello", "", "\n\n\n", "a.b\nx\ny\nz\nw\nnone\nnever\nmore", "\xff\xfe"]
)
def test_foreign_value_is_an_unknown_holder(
    shared_nodes: DevNodes, redlock: Redlock, key: str, value: str
) -> None:
    """Any text under the name of a lock means that it is held, and stays unchanged."""
    for node in shared_nodes.nodes:
        node.command("SET", f"redlock:lock:{key}", value)

    with pytest.raises(LockHeld) as held:
        redlock.acquire(key)

    assert held.value.retry_after == 0.0
    assert held.value.holder
    assert held.value.holder.pid == 0
    assert values(shared_nodes, key) == [value] * 5
    until(lambda: redlock.inspect(key).votes == 5)
    for node in shared_nodes.nodes:
        node.command("DEL", f"redlock:lock:{key}")


def test_node_that_refuses_writes_is_an_error_of_that_node(
    three_nodes: DevNodes, key: str
) -> None:
    """A node without enough replicas or memory refuses; the other nodes decide."""
    first, second, third = three_nodes.nodes
    with client(three_nodes) as redlock:
        redlock.release(redlock.acquire(key))
        first.command("CONFIG", "SET", "min-replicas-to-write", "1")
        lease = redlock.acquire(key)
        assert redlock.extend(lease)
        redlock.release(lease)
        until_nothing_is_left([second, third])
        second.command("CONFIG", "SET", "maxmemory", "1")

        with pytest.raises(QuorumUnreachable, match=r"(?s)NOREPLICAS.*OOM") as refused:
            redlock.acquire(key)

        assert kinds(refused.value.ballot)[:2] == [VoteKind.REFUSED] * 2
        second.command("CONFIG", "SET", "maxmemory", "0")
        until_nothing_is_left(three_nodes)
        redlock.release(redlock.acquire(key))


def test_split_vote_is_contended_and_names_no_holder(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """If two others have two nodes each, all are refused, and no lock is added."""
    for number, node in enumerate(shared_nodes.nodes[:4]):
        token = f"{number % 2:032x}.{'0' * 16}"
        node.command("SET", f"redlock:lock:{key}", f"{token}\n1", "PX", 20_000)

    with pytest.raises(LockContended, match="were split: 1 of 5") as contended:
        redlock.acquire(key)

    assert not isinstance(contended.value, LockHeld)
    until(lambda: len(locks(shared_nodes, key)) == 4)
    for node in shared_nodes.nodes:
        node.command("DEL", f"redlock:lock:{key}")
