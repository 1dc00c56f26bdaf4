"""Helpers for tests on fake nodes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from celery_redlock import scripts
from celery_redlock.locking import lock
from celery_redlock.locks.lease import Lease, drift_of
from celery_redlock.locks.redlock import Redlock
from celery_redlock.locks.watchdog import Watchdog
from celery_redlock.members.view import CLOSED, View
from celery_redlock.testing import FakeClock, FakeNodes
from celery_redlock.wire.quorum import Ballot, Vote, VoteKind

TTL = 10.0  # seconds, of the fixture `redlock`
VALIDITY = TTL - drift_of(TTL)
QUARANTINE = 60.0 * 1.02 + 1.0  # seconds, with the default max_ttl
OVER = QUARANTINE + 0.001  # seconds after which it is over
FREE = [""] * 5  # the holders on five nodes without the lock
STRIPE_OF_K = b"1885"  # crc32("k") % 4096


class Stepped(Watchdog):
    """A watchdog without a thread: the test makes its steps."""

    def __init__(self, redlock: Redlock) -> None:
        super().__init__(redlock)
        self.redlock = redlock

    def start(self) -> bool:
        """Start nothing: the test makes the steps."""
        return True

    def run_for(self, clock: FakeClock, seconds: float) -> None:
        """Do what the thread does in this many seconds."""
        end = clock.monotonic() + seconds
        for _ in range(100_000):
            next_at = self.step()
            if next_at is None or next_at > end:
                clock.advance(end - clock.monotonic())
                return
            clock.advance(next_at - clock.monotonic())
        pytest.fail("the watchdog makes no progress")


@dataclass
class Site:
    """Nodes, their clock, and two processes that lock on them."""

    nodes: FakeNodes
    clock: FakeClock
    redlock: Redlock
    rival: Redlock

    @cached_property
    def watchdog(self) -> Stepped:
        """The watchdog of the first process; it has no thread."""
        return Stepped(self.redlock)

    @cached_property
    def told(self) -> Told:
        """The calls of callbacks that `watched` has passed to the watchdog."""
        return Told(self.clock)

    def watched(
        self, key: str = "k", ttl: float | None = None, **options: Any
    ) -> Lease:
        """Acquire a lock, let the watchdog watch it, and return its lease."""
        lease = self.redlock.acquire(key, ttl)
        told = {"on_lost": self.told.on_lost, "on_renewed": self.told.on_renewed}
        self.watchdog.watch(lease, **{**told, **options})
        return lease

    def lock(self, key: str = "k", **options: Any) -> AbstractContextManager[Lease]:
        """Return a block that the first process locks."""
        return lock(self.redlock, key, watchdog=self.watchdog, **options)

    def renew_for(self, seconds: float) -> None:
        """Do what the watchdog does in this many seconds."""
        self.watchdog.run_for(self.clock, seconds)


class Told:
    """The calls that a holder's callbacks got, and when."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.lost: list[tuple[Lease, float]] = []
        self.renewed: list[tuple[Lease, float, float]] = []

    def on_lost(self, lease: Lease) -> None:
        """Record a loss with its instant."""
        self.lost.append((lease, self._clock.monotonic()))

    def on_renewed(self, lease: Lease, lateness: float) -> None:
        """Record a renewal with its lateness and its instant."""
        self.renewed.append((lease, lateness, self._clock.monotonic()))

    @property
    def instants(self) -> list[float]:
        """The instants of the renewals, counted from the start of the test."""
        return [instant - 1000.0 for _, _, instant in self.renewed]


def asked(nodes: FakeNodes) -> list[str]:
    """Return the names of the scripts that were sent, in order."""
    return [request.script.name for request in nodes.asked]


def args_of(nodes: FakeNodes, script: str) -> list[list[Any]]:
    """Return the arguments with which this script was sent, each time."""
    calls = [request.call for request in nodes.asked]
    return [list(args) for sent, _, args in calls if sent.name == script]


def _lock(key: str) -> bytes:
    return f"redlock:lock:{key}".encode()


def holders(nodes: FakeNodes, key: str = "k") -> list[str]:
    """Return the token that each node names as the holder; "" where there is none."""
    tokens = []
    for node in nodes.nodes:
        node.memory.redis.look_at_clock()
        value = node.memory.redis.get(_lock(key)) or b""
        tokens.append(value.decode().partition("\n")[0])
    return tokens


def ttls(nodes: FakeNodes, key: str = "k") -> list[int]:
    """Return for how many milliseconds each node keeps the lock."""
    for node in nodes.nodes:
        node.memory.redis.look_at_clock()
    return [node.memory.redis.pttl(_lock(key)) for node in nodes.nodes]


def put(
    nodes: FakeNodes, index: int, token: str, *, ttl_ms: int = 10_000, key: str = "k"
) -> None:
    """Let one node name this token as the holder."""
    redis = nodes.nodes[index].memory.redis
    redis.look_at_clock()
    value = f"{token}\n5\ntask\nid-of-{token}\nhost\n7\n9.5"
    redis.set(_lock(key), value.encode(), px=ttl_ms)


def hold(nodes: FakeNodes, *indexes: int, by: str = "other.1") -> None:
    """Let these nodes name another holder."""
    for index in indexes:
        put(nodes, index, by)


def forget(nodes: FakeNodes, *indexes: int) -> None:
    """Delete the lock on these nodes, as an operator or a crash does."""
    for index in indexes:
        nodes.nodes[index].memory.redis.delete(_lock("k"))


def counters(nodes: FakeNodes, field: bytes = STRIPE_OF_K) -> list[int]:
    """Return one fence counter of each node; 0 where there is none."""
    return [
        int(node.memory.redis.hgetall(b"redlock:meta").get(field) or 0)
        for node in nodes.nodes
    ]


def ballot_of(votes: Sequence[Vote | None], labels: Sequence[str] = ()) -> Ballot:
    """Return a ballot with these votes; None is an outstanding one."""
    ballot = Ballot(labels or [f"node-{index}" for index in range(len(votes))])
    for index, vote in enumerate(votes):
        if vote is not None:
            ballot.cast(index, vote)
    return ballot


def kinds(ballot: Ballot) -> list[VoteKind | None]:
    """Return how each node voted."""
    return [vote.kind if vote else None for vote in ballot.votes]


def outlast_quarantine(site: Site, *indexes: int) -> None:
    """Restart these nodes, notice it, and let their quarantine pass."""
    restart(site.nodes, *indexes)
    site.redlock.check()
    site.clock.advance(OVER)


def restart(nodes: FakeNodes, *indexes: int, keep_memory: bool = False) -> None:
    """Restart these nodes."""
    for index in indexes:
        nodes.nodes[index].restart(keep_memory=keep_memory)


def configure(nodes: FakeNodes, config: object, *indexes: int) -> None:
    """Store this text, or this view, as the configuration of these nodes."""
    text = config if isinstance(config, bytes) else str(config).encode()
    for index in indexes:
        fields = {b"config": text}
        nodes.nodes[index].memory.redis.hset(b"redlock:meta", fields)


def new_client(nodes: FakeNodes, **options: Any) -> Redlock:
    """Return a client that knows no view yet, of nodes that were not initialized."""
    options = {"transport": nodes, "clock": nodes.clock, **options}
    return Redlock(nodes.urls, node_timeout=0.05, **options)


def view_of(redlock: Redlock) -> View:
    """Return the view of a client that has one."""
    assert redlock.guard.view
    return redlock.guard.view


def close(nodes: FakeNodes, redlock: Redlock, *indexes: int) -> None:
    """Close nodes for a plan that is never finished."""
    old = view_of(redlock)
    identities = {
        label: old.member(label).identity
        for label in redlock.guard.configuration.labels
    }
    plan = View.first_of_epoch(
        redlock.guard.configuration, identities, before=old, is_founded=False
    )
    args = [str(old), f"{CLOSED}{plan}", str(plan), redlock.guard.quarantine_ms]
    for index in indexes:
        nodes.nodes[index].memory.execute(scripts.CLOSE, ["redlock:meta"], args)


def numbers_of(redlock: Redlock) -> list[int]:
    """Return for each place how often its member was replaced."""
    return [member.number for member in view_of(redlock).members]


def voting(redlock: Redlock) -> list[bool]:
    """Return which nodes would grant a lock now."""
    return [kind is VoteKind.GRANTED for kind in kinds(redlock.check().ballot)]
