"""Answers of nodes that are no plain yes: no script, no room, a value of strangers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.ballot import VoteKind
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
    from collections.abc import Callable

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes

pytestmark = pytest.mark.every_server


def test_forgotten_scripts_are_sent_again(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A node that was told to forget its scripts costs a round trip, no vote."""
    nodes = start_nodes(3)

    def forget() -> None:
        for node in nodes.nodes:
            node.command("SCRIPT", "FLUSH")

    with client(nodes) as redlock:
        for step in range(5):
            lease = redlock.acquire(f"{key}:{step}")
            forget()
            assert redlock.extend(lease)
            forget()
            assert redlock.inspect(lease.key).votes >= 2
            forget()
            assert redlock.release(lease) >= 1
            redlock.inspect(lease.key)
        until_nothing_is_left(nodes)


def test_fresh_nodes_know_the_scripts(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """On new servers the first lock is on all of them, and gone from all of them."""
    nodes = start_nodes(5)
    with client(nodes) as redlock, client(nodes) as rival:
        redlock.check()  # connects to all of them
        lease = redlock.acquire(key)
        until(lambda: None not in values(nodes, key))

        rival.release_base(key, lease.token.partition(".")[0])
        watchdog_of(rival).look_after_debts()  # some may still be connecting

        until_nothing_is_left(nodes)


@pytest.mark.parametrize(
    "words",
    [("LPUSH", "x"), ("HSET", "field", "x")],
    ids=["list", "hash"],
)
def test_key_of_another_type_is_an_error_of_that_node(
    shared_nodes: DevNodes, redlock: Redlock, key: str, words: tuple[str, ...]
) -> None:
    """What somebody else keeps under a lock's name is no lock, and is not deleted."""
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
def test_foreign_value_is_a_holder_nobody_knows(
    shared_nodes: DevNodes, redlock: Redlock, key: str, value: str
) -> None:
    """Whatever text is under a lock's name, somebody holds it; it stays untouched."""
    for node in shared_nodes.nodes:
        node.command("SET", f"redlock:lock:{key}", value)

    with pytest.raises(LockHeld) as held:
        redlock.acquire(key)

    assert held.value.retry_after == 0.0
    assert held.value.holder
    assert held.value.holder.pid == 0
    assert values(shared_nodes, key) == [value] * 5
    assert redlock.inspect(key).votes == 5
    for node in shared_nodes.nodes:
        node.command("DEL", f"redlock:lock:{key}")


def test_node_that_refuses_to_write_is_an_error_of_that_node(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Without enough replicas, or memory, a node refuses; a majority decides."""
    nodes = start_nodes(3)
    with client(nodes) as redlock:
        redlock.release(redlock.acquire(key))
        nodes.nodes[0].command("CONFIG", "SET", "min-replicas-to-write", "1")
        lease = redlock.acquire(key)
        assert redlock.extend(lease)
        redlock.release(lease)
        until_nothing_is_left(nodes.nodes[1:])
        nodes.nodes[1].command("CONFIG", "SET", "maxmemory", "1")

        with pytest.raises(QuorumUnreachable, match=r"(?s)NOREPLICAS.*OOM") as refused:
            redlock.acquire(key)

        assert kinds(refused.value.ballot)[:2] == [VoteKind.REFUSED] * 2
        nodes.nodes[1].command("CONFIG", "SET", "maxmemory", "0")
        until_nothing_is_left(nodes.nodes)
        redlock.release(redlock.acquire(key))


def test_split_vote_is_contended_and_names_nobody(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """Where two others have two nodes each nobody has won, and nothing is left."""
    for number, node in enumerate(shared_nodes.nodes[:4]):
        token = f"{number % 2:032x}.{'0' * 16}"
        node.command("SET", f"redlock:lock:{key}", f"{token}\n1", "PX", 20_000)

    with pytest.raises(LockContended, match="were split: 1 of 5") as contended:
        redlock.acquire(key)

    assert not isinstance(contended.value, LockHeld)
    until(lambda: len(locks(shared_nodes, key)) == 4)
    for node in shared_nodes.nodes:
        node.command("DEL", f"redlock:lock:{key}")
