"""Dead and hung nodes: a lock is granted if and only if a majority answers.

Nodes come back, too: leases outlive that, and nodes that are away cost no time.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence

import pytest

from celery_redlock.devnodes import DevNode, DevNodes, redis_servers
from celery_redlock.errors import LockHeld, QuorumUnreachable
from celery_redlock.locks.lease import Lease
from celery_redlock.locks.redlock import Redlock
from celery_redlock.wire.quorum import VoteKind, quorum_of
from tests.conftest import with_long
from tests.nodes.support import (
    BRIEF,
    StartNodes,
    client,
    failing,
    initialize_anew,
    kinds,
    scripts_run,
    until,
    until_all_vote,
    until_nothing_is_left,
    values,
)

SUBSETS = ["".join(flags) for flags in itertools.product("-x", repeat=5)]
IN_MAKE_TEST = {"-----", "--x--", "x-x--", "-xx-x", "xxxxx"}  # one of each size


# -- Every subset ------------------------------------------------------------------


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
        initialize_anew(redlock, nodes)


def crossed_out(nodes: Sequence[DevNode], subset: str) -> list[DevNode]:
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


@pytest.mark.parametrize("way", ["dead", "hung"])
@pytest.mark.parametrize("subset", with_long(SUBSETS, *{*SUBSETS} - IN_MAKE_TEST))
def test_every_subset_of_five(nodes: DevNodes, key: str, subset: str, way: str) -> None:
    """Old and new clients get a lock iff three of five answer; no node keeps it."""
    away = crossed_out(nodes.nodes, subset)
    with client(nodes) as old, client(nodes) as new:
        old.release(old.acquire(key))
        with failing(away, way):
            try_it(old, key, subset)
            try_it(new, key, subset)
            until_nothing_is_left([node for node in nodes.nodes if node not in away])

        if way == "dead":
            start_anew(nodes)
        until_nothing_is_left(nodes)
        for redlock in (old, new):
            until_all_vote(redlock)
        try_it(old, key, "-----")
    until_nothing_is_left(nodes)


# -- Nodes that come and go --------------------------------------------------------


@pytest.mark.every_server
def test_lock_moves_over_as_nodes_die_and_come_back(
    start_nodes: StartNodes, key: str
) -> None:
    """A lease outlives the loss of a majority, node by node, renewed in between.

    The next one may be lost when the last one votes again, and no sooner.
    """
    nodes = start_nodes(3, max_ttl=BRIEF)
    options = {"max_ttl": BRIEF, "ttl": BRIEF}
    with client(nodes, **options) as redlock, client(nodes, **options) as rival:
        lease = redlock.acquire(key)
        for node in nodes.nodes[:2]:
            with failing([node], "dead"):
                assert redlock.extend(lease)

            def has_moved() -> bool:
                is_renewed = redlock.extend(lease)
                redlock.check()
                return is_renewed and None not in values(nodes, key)

            until(has_moved, 30)
            with pytest.raises((LockHeld, QuorumUnreachable)):
                rival.acquire(key)
        assert lease.is_valid()
        lease.ensure(network=True)
        assert redlock.release(lease) >= 2
    until_nothing_is_left(nodes)


def test_earlier_tries_do_not_block_later_ones(three_nodes: DevNodes, key: str) -> None:
    """A node that granted a failed try grants the next try as well.

    Source: node-redlock, "self-blocking" (pull request #369).
    """
    well, late, dead = three_nodes.nodes
    leases: list[Lease] = []
    with client(three_nodes, ttl=60) as redlock:
        thread = threading.Thread(
            target=lambda: leases.append(redlock.acquire(key, wait=30))
        )
        until_all_vote(redlock)
        dead.kill()
        before = scripts_run([well])
        with failing([late]):
            thread.start()
            until(lambda: scripts_run([well]) >= before + 3)

        thread.join(30)
        assert [lease.votes for lease in leases] == [2]  # so both were needed
        redlock.release(leases[0])
        until_nothing_is_left(three_nodes)


def test_hung_node_is_logged_though_no_call_waits_for_it(
    three_nodes: DevNodes, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of three nodes grant and release each lock, and the log names the third."""
    with client(three_nodes, node_timeout=0.2, connect_timeout=0.2) as redlock:
        until_all_vote(redlock)

        def locks_until_logged() -> bool:
            redlock.release(redlock.acquire(key, wait=10.0))
            return f":{hung.port}/0 answers late: no reply for " in caplog.text

        hung = three_nodes.nodes[2]
        hung.pause()
        until(locks_until_logged, what="a line about the hung node")
        hung.resume()


def test_error_names_no_time_that_nodes_did_not_have(three_nodes: DevNodes) -> None:
    """Those that could not be connected to had longer than to answer."""
    with (
        client(three_nodes, node_timeout=0.25, connect_timeout=0.5) as redlock,
        failing(three_nodes.nodes[:2]),
        pytest.raises(QuorumUnreachable) as caught,
    ):
        redlock.acquire("k")

    assert "did not answer within 0.5 s" in str(caught.value)
    assert "0.25 s" not in str(caught.value)


def test_call_ends_when_the_last_connection_has_failed(three_nodes: DevNodes) -> None:
    """It does not wait for its time to pass: there is no other vote to come."""
    with client(three_nodes, node_timeout=1.0) as redlock:
        with failing(three_nodes.nodes[:1]):  # hung: it accepts, and says nothing
            object.__setattr__(redlock.timing, "node_timeout", 3600.0)

            ballot = redlock.inspect("k").ballot

        assert kinds(ballot) == [VoteKind.SILENT, VoteKind.FREE, VoteKind.FREE]
        object.__setattr__(redlock.timing, "node_timeout", 1.0)
