"""Nodes that are dead, hung, late or cut off: every subset of them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.ballot import VoteKind, quorum_of
from celery_redlock.core.lease import LeaseState
from celery_redlock.devnodes import DevNode, DevNodes, ServerOptions, redis_servers
from celery_redlock.errors import LockHeld, LockLost, QuorumUnreachable
from celery_redlock.locking import lock
from tests.nodes.support import (
    PATIENT,
    client,
    kinds,
    locks,
    until,
    until_nothing_is_left,
    values,
    wires,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock

SUBSETS = ["".join(flags) for flags in itertools.product("-x", repeat=5)]
SMALL = [
    "".join(flags)
    for count in (1, 2, 3, 4)
    for flags in itertools.product("-x", repeat=count)
]


@pytest.fixture(scope="module")
def module_nodes(redis_server: str) -> Iterator[DevNodes]:
    """Give five nodes, of all the versions there are, as during an upgrade."""
    nodes = DevNodes(5, binary=redis_server)
    for index, binary in enumerate(redis_servers()):
        nodes.nodes[2 * index] = DevNode(binary=binary)
    with nodes:
        yield nodes


@pytest.fixture
def nodes(module_nodes: DevNodes) -> Iterator[DevNodes]:
    """Give five nodes that are well again afterwards."""
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
    assert "Nothing is locked" in str(error)
    assert error.retry_after is None
    said = str(error).partition("Nothing")[0]
    for label, flag, kind in zip(
        redlock.labels, subset, kinds(error.ballot), strict=True
    ):
        # The verdict can be certain before a node that is well has answered.
        assert kind is VoteKind.SILENT or (kind is VoteKind.GRANTED and flag == "-")
        assert (label in said) == (kind is VoteKind.SILENT)


def until_well(redlock: Redlock) -> None:
    """Wait until this service gets a vote from all nodes."""
    until(lambda: redlock.check().problems == [], what=f"{redlock} to be well")


# -- Every subset --------------------------------------------------------------------


@pytest.mark.parametrize("subset", SUBSETS)
def test_every_subset_of_five_dead(nodes: DevNodes, key: str, subset: str) -> None:
    """A lock is had iff three of five are alive, by old and by new processes."""
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
            until_well(redlock)
        try_it(old, key, "-----")
    until_nothing_is_left(nodes)


@pytest.mark.parametrize("subset", SUBSETS)
def test_every_subset_of_five_hung(nodes: DevNodes, key: str, subset: str) -> None:
    """A lock is had iff three of five answer; those that wake up keep nothing."""
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
            until_well(redlock)
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


# -- Coming and going ------------------------------------------------------------------


@pytest.mark.every_server
def test_lock_moves_over_as_nodes_die_and_come_back(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A lease outlives the loss of each of its nodes in turn, renewed in between."""
    nodes = start_nodes(3, max_ttl=30.0)
    with client(nodes, max_ttl=30.0) as redlock, client(nodes, max_ttl=30.0) as rival:
        lease = redlock.acquire(key)
        for node in nodes.nodes:
            node.kill()
            assert redlock.extend(lease)
            node.restart()
            until(lambda: redlock.extend(lease) and None not in values(nodes, key))
            with pytest.raises((LockHeld, QuorumUnreachable)):
                rival.acquire(key)
        assert lease.is_valid()
        lease.ensure(network=True)
        assert redlock.release(lease) >= 2
    until_nothing_is_left(nodes)


def test_client_started_before_the_nodes(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A process that found no node at all has its lock as soon as they are there."""
    nodes = start_nodes(3)
    for node in nodes.nodes:
        node.kill()
    with client(nodes, restart_guard=False) as redlock:
        with pytest.raises(QuorumUnreachable, match="refused the connection"):
            redlock.acquire(key)
        for node in nodes.nodes:
            node.restart()

        lease = redlock.acquire(key, wait=20)

        assert redlock.release(lease) >= 2


def test_dead_nodes_cost_no_time(start_nodes: Callable[..., DevNodes]) -> None:
    """A node that is not connected is a failed vote at once, not after a time-out."""
    nodes = start_nodes(5)
    with client(nodes, node_timeout=5.0) as redlock:
        redlock.release(redlock.acquire("k"))
        for node in nodes.nodes[:3]:
            node.kill()
        with pytest.raises(QuorumUnreachable):
            redlock.acquire("k")
        began = redlock.clock.monotonic()

        for _ in range(10):
            with pytest.raises(QuorumUnreachable):
                redlock.acquire("k")

        assert redlock.clock.monotonic() - began < 5.0  # one single time-out


def test_hung_minority_is_waited_for_once(start_nodes: Callable[..., DevNodes]) -> None:
    """A node that was late is asked on, but nobody waits for it any more."""
    nodes = start_nodes(5)
    with client(nodes, node_timeout=3.0) as redlock:
        redlock.release(redlock.acquire("k"))
        for node in nodes.nodes[:2]:
            node.pause()
        redlock.inspect("k")  # asks everybody, so it runs into the time-out
        began = redlock.clock.monotonic()

        for _ in range(10):
            redlock.inspect("k")
            redlock.release(redlock.acquire("k"))

        # Waiting for them each time would take a minute and a half.
        assert redlock.clock.monotonic() - began < 30.0
        for node in nodes.nodes[:2]:
            node.resume()
        until(lambda: kinds(redlock.inspect("k").ballot) == [VoteKind.FREE] * 5)


# -- Late answers --------------------------------------------------------------------


@pytest.mark.every_server
def test_late_replies_are_never_taken_for_others(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """What a node says late about one key never counts for the next one asked."""
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
            # The replies to that are on their way: granted, granted.
            with pytest.raises((LockHeld, QuorumUnreachable)):
                redlock.acquire(taken.key)
        assert rival.extend(taken)
        assert rival.release(taken) >= 2
        until_nothing_is_left(nodes)


@pytest.mark.parametrize("cut", [False, True], ids=["late", "lost"])
def test_replies_that_are_lost_leave_no_lock(
    three_nodes: DevNodes, key: str, *, cut: bool
) -> None:
    """Nodes that granted, and whose answer was late or lost, are told to let go."""
    with (
        wires(three_nodes) as lines,
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

        until_well(redlock)
        until_nothing_is_left(three_nodes)


def test_release_that_was_lost_is_told_again(three_nodes: DevNodes, key: str) -> None:
    """A node that was cut off at release is told when it is back, unasked."""
    with (
        wires(three_nodes) as lines,
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


def test_release_by_a_node_that_kept_its_disk(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A node that died holding the lock, with all on disk, is told when it is back."""
    options = ServerOptions(config={"appendonly": "yes", "appendfsync": "always"})
    nodes = start_nodes(3, options=options)
    with client(nodes) as redlock:
        lease = redlock.acquire(key)
        until(lambda: None not in values(nodes, key))
        nodes.nodes[0].kill()
        redlock.release(lease)
        nodes.nodes[0].restart(keep_memory=True)
        assert values(nodes, key)[0]

        def is_told() -> bool:
            redlock.check()  # whatever comes next brings it along
            return not locks(nodes, key)

        until(is_told)


def test_acquire_overtaken_by_its_release_leaves_nothing(
    three_nodes: DevNodes, key: str
) -> None:
    """A connection that broke with an acquire on it: the node hears of the release.

    The line delivers what it held only after the client has given up on it and has
    connected anew, so the node carries the acquire out after the first release.
    """
    with (
        wires(three_nodes) as lines,
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


# -- Loss ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["dead", "hung"])
def test_holder_without_a_majority_is_told_in_time(
    start_nodes: Callable[..., DevNodes], key: str, way: str
) -> None:
    """A majority that is gone ends the lease with its validity, and no sooner."""
    nodes = start_nodes(5)
    told: list[float] = []
    with client(nodes, ttl=1.0, node_timeout=0.1) as redlock:
        lease = redlock.acquire(key)
        redlock.release(lease)

        def run() -> None:
            for node in nodes.nodes[:3]:
                node.kill() if way == "dead" else node.pause()
            until(lambda: told)

        def note(_: Lease) -> None:
            told.append(redlock.clock.monotonic())

        with pytest.raises(LockLost), lock(redlock, key, on_lost=note) as lease:
            run()

        assert lease.state is LeaseState.LOST
        assert told[0] >= lease.until
        assert len(told) == 1
        for node in nodes.nodes[:3]:
            node.restart() if way == "dead" else node.resume()
        until_nothing_is_left(nodes, key)


def test_ensure_cannot_tell_without_a_majority(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Too few answers are no proof of a loss: the error says that nobody knows."""
    nodes = start_nodes(3)
    with client(nodes, node_timeout=0.1) as redlock:
        lease = redlock.acquire(key)
        for node in nodes.nodes[:2]:
            node.pause()

        with pytest.raises(QuorumUnreachable):
            lease.ensure(network=True)

        assert lease.is_valid()
        for node in nodes.nodes[:2]:
            node.resume()
        until_well(redlock)
        lease.ensure(network=True)
        redlock.release(lease)
