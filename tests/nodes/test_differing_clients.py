"""Clients that are set up differently do not exclude each other: nodes refuse them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from celery_redlock.devnodes import DevNode, DevNodes
from celery_redlock.errors import LockUnavailable, QuorumUnreachable
from celery_redlock.locks.redlock import Redlock
from celery_redlock.wire.quorum import VoteKind
from tests.harness.waiting import until
from tests.nodes.support import (
    SHORT,
    client,
    granted,
    initialize_anew,
    kinds,
    refusal,
    until_all_vote,
    until_nothing_is_left,
)


def assert_refused(
    redlock: Redlock, key: str, *facts: str, refusals: int
) -> QuorumUnreachable:
    """Assert that nodes refuse this client with these facts, and return the error."""
    with pytest.raises(QuorumUnreachable) as refused:
        redlock.acquire(key)
    error = refused.value
    assert kinds(error.ballot).count(VoteKind.REFUSED) >= refusals
    assert error.retry_after is None
    for fact in facts:
        assert fact in str(error)
    assert "has another view of the deployment" in str(error)
    assert "celery -A proj redlock reconfigure" in str(error)
    return error


def names(nodes: Sequence[DevNode]) -> str:
    """Return the nodes as a configuration lists them."""
    return ", ".join(sorted(f"127.0.0.1:{node.port}/0" for node in nodes))


@pytest.mark.every_server
def test_another_list_of_nodes_is_refused(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Clients that name other nodes do not exclude each other, so nodes refuse them."""
    nodes = start_nodes(5)
    three, right = nodes.nodes[:3], f"at epoch 1 with the nodes {names(nodes.nodes)}"
    with client(nodes) as redlock, client([node.url for node in three]) as other:
        until_all_vote(redlock)
        lease = redlock.acquire(key)

        assert_refused(other, key, right, refusals=2)

        assert redlock.extend(lease)
        assert redlock.inspect(key).votes == 5
        assert_refused(other, f"{key}:free", right, refusals=2)
        until_nothing_is_left(nodes, "free")
        redlock.release(lease)


def test_longer_list_of_nodes_is_refused(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """New nodes that believe a wrong client do not make a majority with it."""
    nodes = start_nodes(3)
    more = start_nodes(2, initialize=False)
    with client(nodes) as redlock, client([*nodes.urls, *more.urls]) as other:
        with pytest.raises(QuorumUnreachable):
            other.acquire(key)
        wanted = [VoteKind.REFUSED] * 3 + [VoteKind.UNSYNCED] * 2
        until(lambda: kinds(other.check().ballot) == wanted, 20)

        redlock.release(redlock.acquire(key))


@pytest.mark.every_server
def test_name_that_leads_to_another_server_makes_no_second_majority(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Of three equal names, one leads to two servers; each client misses one node.

    A host file, `localhost` or a name space of its own can do that. With names alone,
    n1 and n3 are a majority, and so are n2 and the empty server. (A client that misses
    a node for a whole max_ttl takes it to be gone: docs/explanation/why-it-is-safe.md.)
    """
    nodes, another = start_nodes(3), start_nodes(1, initialize=False)
    n1, n2, n3, empty, none = *nodes.urls, *another.urls, "redis://127.0.0.1:1"

    def named(a: str, b: str, c: str) -> list[dict[str, str]]:
        return [
            {"name": n, "url": url} for n, url in zip("abc", (a, b, c), strict=True)
        ]

    with (
        client(named(n1, n2, n3)) as founder,
        client(named(n1, none, n3)) as holder,
        client(named(none, n2, empty)) as rival,
    ):
        initialize_anew(founder, nodes)
        lease = holder.acquire(key)

        def is_in_the_view() -> bool:
            with pytest.raises(LockUnavailable):
                rival.acquire(key)
            return "known:c" in another.nodes[0].command("HKEYS", "redlock:meta")

        until(is_in_the_view)
        for _ in range(5):
            assert is_in_the_view()
            assert holder.extend(lease)
        holder.release(lease)


def test_name_of_the_only_node_that_leads_to_two_servers_lets_two_hold(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """No other node sees both servers: one address that moves, and moves back."""
    servers = [start_nodes(1) for _ in range(2)]
    names = [[{"name": "a", "url": one.urls[0]}] for one in servers]
    with client(names[0]) as redlock, client(names[1]) as rival:
        for one, nodes in zip((redlock, rival), servers, strict=True):
            initialize_anew(one, nodes)

        leases = [granted(redlock, key), granted(rival, key)]

        until(lambda: redlock.extend(leases[0]))
        until(lambda: rival.extend(leases[1]))
        assert all(lease.is_valid() for lease in leases)


@pytest.mark.parametrize("is_guarded", [True, False], ids=["on", "off"])
def test_restart_guard_is_changed_by_the_steps_of_the_refusal(
    start_nodes: Callable[..., DevNodes], key: str, *, is_guarded: bool
) -> None:
    """No command changes it: the nodes forget `meta` while no client runs."""
    nodes = start_nodes(3, initialize=False)
    with client(nodes, **SHORT, restart_guard=not is_guarded) as before:
        before.initialize()
        fence = granted(before, key).fence
        with client(nodes, **SHORT, restart_guard=is_guarded) as early:
            remedy = f"Set redlock_restart_guard = {not is_guarded}"
            error = refusal(early, key, says=remedy)
    assert "delete the key `meta` on all nodes" in str(error)
    assert ("wait for one max_ttl" in str(error)) is not is_guarded

    for node in nodes.nodes:
        node.command("DEL", "redlock:meta")

    with client(nodes, **SHORT, restart_guard=is_guarded) as after:
        if is_guarded:
            with pytest.raises(QuorumUnreachable):
                after.acquire(key)
        until_all_vote(after)
        assert after.acquire(key, wait=20).fence > fence
