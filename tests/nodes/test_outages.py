"""Dead and hung nodes: a lock is granted if and only if a majority answers."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.quorum import VoteKind, quorum_of
from celery_redlock.devnodes import DevNode, DevNodes, redis_servers
from celery_redlock.errors import LockHeld, QuorumUnreachable
from tests.nodes.support import (
    PATIENT,
    client,
    kinds,
    until_all_vote,
    until_nothing_is_left,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_redlock.core.redlock import Redlock

SUBSETS = ["".join(flags) for flags in itertools.product("-x", repeat=5)]
SMALL = [
    "".join(flags)
    for count in (1, 2, 3, 4)
    for flags in itertools.product("-x", repeat=count)
]


@pytest.fixture(scope="module")
def module_nodes(redis_server: str) -> Iterator[DevNodes]:
    """Give five nodes of all installed versions, as during an upgrade."""
    nodes = DevNodes(5, binary=redis_server)
    for index, binary in enumerate(redis_servers()):
        nodes.nodes[2 * index] = DevNode(binary=binary)
    with nodes:
        yield nodes


@pytest.fixture
def nodes(module_nodes: DevNodes) -> Iterator[DevNodes]:
    """Give five nodes, and repair them afterwards."""
    yield module_nodes
    for node in module_nodes.nodes:
        if node.is_running:
            node.resume()
        else:
            node.restart()
        node.command("FLUSHALL")
    start_anew(module_nodes)


def start_anew(nodes: DevNodes) -> None:
    """Spare restarted nodes their quarantine, which is not the subject here."""
    with client(nodes) as redlock:
        redlock.initialize()


def broken(nodes: Sequence[DevNode], subset: str) -> list[DevNode]:
    """Return the nodes that are crossed out."""
    return [node for node, flag in zip(nodes, subset, strict=True) if flag == "x"]


def try_it(redlock: Redlock, key: str, subset: str) -> None:
    """Acquire, extend and release; assert that it works iff a majority is well."""
    well, quorum = subset.count("-"), quorum_of(len(subset))
    if well >= quorum:
        lease = redlock.acquire(key)
        assert lease.is_valid()
        assert redlock.extend(lease)
        lease.ensure(network=True)
        holder = redlock.inspect(key).holder
        assert holder
        assert holder.token == lease.token
        with pytest.raises(LockHeld):
            redlock.acquire(key)
        assert redlock.release(lease)
        return
    with pytest.raises(QuorumUnreachable) as unreachable:
        redlock.acquire(key)
    error = unreachable.value
    assert f"need {quorum}" in str(error)
    assert "Nothing is held" in str(error)
    assert error.retry_after is None
    said = str(error).partition("Nothing")[0]
    for label, flag, kind in zip(
        redlock.labels, subset, kinds(error.ballot), strict=True
    ):
        # The verdict can be certain before a node that is well has answered.
        assert kind is VoteKind.SILENT or (kind is VoteKind.GRANTED and flag == "-")
        assert (label in said) == (kind is VoteKind.SILENT)


@pytest.mark.parametrize("subset", SUBSETS)
def test_every_subset_of_five_dead(nodes: DevNodes, key: str, subset: str) -> None:
    """Old and new clients get a lock iff three of five nodes are alive."""
    dead = broken(nodes.nodes, subset)
    with client(nodes) as old, client(nodes) as new:
        old.release(old.acquire(key))
        for node in dead:
            node.kill()

        try_it(old, key, subset)
        try_it(new, key, subset)

        until_nothing_is_left(nodes)
        for node in dead:
            node.restart()
        start_anew(nodes)
        for redlock in (old, new):
            until_all_vote(redlock)
        try_it(old, key, "-----")
    until_nothing_is_left(nodes)


@pytest.mark.parametrize("subset", SUBSETS)
def test_every_subset_of_five_hung(nodes: DevNodes, key: str, subset: str) -> None:
    """A lock is granted iff three of five nodes answer; hung nodes keep no lock."""
    hung = broken(nodes.nodes, subset)
    well = [node for node in nodes.nodes if node not in hung]
    with client(nodes) as old, client(nodes, connect_timeout=PATIENT) as new:
        old.release(old.acquire(key))
        for node in hung:
            node.pause()
        try:
            try_it(old, key, subset)
            try_it(new, key, subset)
            until_nothing_is_left(well)
        finally:
            for node in hung:
                node.resume()

        until_nothing_is_left(nodes)
        for redlock in (old, new):
            until_all_vote(redlock)
        try_it(old, key, "-----")
    until_nothing_is_left(nodes)


@pytest.mark.parametrize("way", ["dead", "hung"])
@pytest.mark.parametrize("subset", SMALL)
def test_every_subset_of_fewer_nodes(
    nodes: DevNodes, key: str, subset: str, way: str
) -> None:
    """One, two, three and four nodes: a majority decides, and two of four is none."""
    some = nodes.nodes[: len(subset)]
    prefix = f"of-{len(subset)}"
    urls = [node.url for node in some]
    with client(urls, prefix=prefix, restart_guard=False) as redlock:
        redlock.release(redlock.acquire(key))
        for node in broken(some, subset):
            node.kill() if way == "dead" else node.pause()
        try:
            try_it(redlock, key, subset)
        finally:
            for node in broken(some, subset):
                node.restart() if way == "dead" else node.resume()
        until_nothing_is_left(nodes, key)
