"""A node that lost its memory has no vote, so no second holder gets in by it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from celery_redlock.devnodes import DevNode, DevNodes, redis_servers
from celery_redlock.errors import LockUnavailable
from celery_redlock.locks.lease import Lease
from celery_redlock.locks.redlock import Redlock
from celery_redlock.wire.quorum import VoteKind
from tests.harness.tcp import Proxy, proxies
from tests.nodes.support import (
    MAX_TTL,
    QUARANTINE,
    SHORT,
    client,
    granted,
    kinds,
    until,
    until_all_vote,
    values,
)


class Loss:
    """A loss of a node's memory: it crashes and restarts empty."""

    def __init__(self, line: Proxy, start: Callable[[], DevNode]) -> None:
        self.line = line
        self.start = start

    def prepare(self) -> None:
        """Prepare the loss before the lock is acquired."""

    def happen(self) -> None:
        """Make the node forget its keys."""
        self.line.target.restart()


class Flush(Loss):
    """The running node is emptied."""

    def happen(self) -> None:
        """Make the node forget its keys."""
        self.line.target.command("FLUSHALL")


class Swap(Loss):
    """The node swaps in an empty database."""

    def happen(self) -> None:
        """Make the node forget its keys."""
        self.line.target.command("SWAPDB", "0", "1")


class Rollback(Loss):
    """The node crashes and restarts with an old snapshot."""

    def prepare(self) -> None:
        """Take the snapshot."""
        self.line.target.command("SAVE")

    def happen(self) -> None:
        """Make the node forget its keys."""
        self.line.target.kill()
        self.line.target.restart(keep_memory=True)


class Twice(Loss):
    """The node crashes and restarts empty, twice."""

    def happen(self) -> None:
        """Make the node forget its keys."""
        self.line.target.restart()
        self.line.target.restart()


class Replacement(Loss):
    """Another, empty server takes over the address."""

    def happen(self) -> None:
        """Make the node forget its keys."""
        self.line.target = self.start()
        self.line.cut()
        self.line.mend()


class Promotion(Loss):
    """A replica that is behind takes over the address."""

    def prepare(self) -> None:
        """Start the replica and copy the present keys to it."""
        self.replica = self.start()
        self.line.target.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        self.replica.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        self.replica.command("REPLICAOF", "127.0.0.1", self.line.target.port)
        until(lambda: is_synced(self.replica))
        self.replica.command("REPLICAOF", "NO", "ONE")
        assert self.replica.command("EXISTS", "redlock:meta")

    def happen(self) -> None:
        """Make the node forget its keys."""
        self.line.target.kill()
        self.line.target = self.replica
        self.line.cut()
        self.line.mend()


class FailBack(Promotion):
    """The node becomes a replica of an older copy of itself, and a master again.

    The process is the same, and the copy gives it back what it knew of itself.
    """

    def happen(self) -> None:
        """Make the node forget its keys."""
        node = self.line.target
        node.command("REPLICAOF", "127.0.0.1", self.replica.port)
        until(lambda: is_synced(node))
        node.command("REPLICAOF", "NO", "ONE")


def is_synced(replica: DevNode) -> bool:
    """Tell whether a replica has the keys of its master."""
    return bool(replica.command("INFO", "replication")["master_link_status"] == "up")


SOON = 30.0  # seconds, on a busy machine whose nodes answer in time now and then

FIRST, LAST = 0, -1  # of the installed versions of Redis


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        (Loss, FIRST),
        (Rollback, LAST),
        (Replacement, LAST),
        (FailBack, LAST),
        *(
            pytest.param(kind, version, marks=pytest.mark.long)
            for kind, version in (
                *((Flush, LAST), (Swap, FIRST), (Twice, FIRST), (Promotion, FIRST)),
                *((Loss, LAST), (Flush, FIRST)),
            )
        ),
    ],
)
def test_node_that_forgot_lets_no_second_holder_in(
    start_nodes: Callable[..., DevNodes], key: str, kind: type[Loss], version: int
) -> None:
    """If X and Y have the lock and X forgets it, X and Z grant no second lock.

    X votes again by itself after its quarantine, with counters from the others.
    """
    binary = redis_servers()[version]
    nodes = start_nodes(3, binary=binary, initialize=False)

    def start_one() -> DevNode:
        return start_nodes(1, initialize=False, binary=binary).nodes[0]

    with (
        proxies(nodes) as lines,
        client([line.url for line in lines], **SHORT) as redlock,
        client([line.url for line in lines], **SHORT) as rival,
    ):
        redlock.initialize()
        until_all_vote(redlock)
        rival.release(rival.acquire(f"{key}:before", wait=SOON))
        loss = kind(lines[0], start_one)
        loss.prepare()

        def taken_everywhere() -> Lease | None:
            taken = redlock.acquire(key, wait=SOON)
            if None not in values(nodes, key):
                return taken
            redlock.release(taken)
            return None

        lease = until(taken_everywhere)
        assert lease is not None
        nodes.nodes[2].command("DEL", f"redlock:lock:{key}")  # Z was away

        before = time.monotonic()
        loss.happen()
        forgot_at = time.monotonic()
        ballots, successor = refusals(rival, key)

        assert not lease.is_valid()
        assert successor.fence > lease.fence
        rival.release(successor)
        for first, *_ in ballots:
            assert first in (VoteKind.QUARANTINED, VoteKind.SILENT)
        voted_at = first_vote_of(rival, 0)
        assert voted_at - before >= QUARANTINE
        assert voted_at - forgot_at >= MAX_TTL
        until_all_vote(redlock)
        later = redlock.acquire(key, wait=SOON)
        assert later.fence > successor.fence
        redlock.release(later)


@pytest.mark.parametrize("count", [1, 3])
def test_first_lock_on_nodes_that_run_for_long_is_granted_at_once(
    start_nodes: Callable[..., DevNodes], key: str, count: int
) -> None:
    """They prove that they have never voted, and so have forgotten nothing.

    Later a node that loses all its keys proves nothing any more: it has voted.
    """
    nodes = start_nodes(count, initialize=False)
    until(lambda: all(uptime_of(node) > QUARANTINE + 1 for node in nodes.nodes))
    with client(nodes, **SHORT) as redlock, client(nodes, **SHORT) as rival:
        lease = granted(redlock, key)

        for node in nodes.nodes:
            node.command("DEL", "redlock:meta", f"redlock:lock:{key}")

        with pytest.raises(LockUnavailable):
            rival.acquire(key)
        until(lambda: not lease.is_valid())


def uptime_of(node: DevNode) -> int:
    """Return for how many seconds the process of a node runs."""
    return int(node.command("INFO", "server")["uptime_in_seconds"])


def refusals(redlock: Redlock, key: str) -> tuple[list[list[VoteKind]], Lease]:
    """Try until the lock is granted; return the ballots before that, and the lease."""
    ballots: list[list[VoteKind]] = []

    def attempt() -> Lease | None:
        try:
            return redlock.acquire(key)
        except LockUnavailable as error:
            ballots.append(kinds(error.ballot))
            return None

    lease = until(attempt)
    assert lease
    return ballots, lease


def first_vote_of(redlock: Redlock, index: int) -> float:
    """Wait until this node votes; return the instant at which its vote was seen."""

    def votes() -> bool:
        return kinds(redlock.check().ballot)[index] is VoteKind.GRANTED

    until(votes, what=f"{redlock.labels[index]} to vote")
    return time.monotonic()
