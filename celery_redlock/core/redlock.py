"""Acquire, extend, release, inspect on a majority.

::

    acquire ──► ask all nodes ──► won ──► agree on a fence ──► lease
                  ▲      │
                  │      └─ held / contended / unreachable ──► release what was
                  │                                            granted, then
                  └── random delay, new token ◄── try again ◄──┘   or raise
                      (or until it is released: see core.waiting)

A lease is valid for ``ttl − (now − time before the attempt's first send) − drift``
with ``drift = 1 % of ttl + 2 ms``, by a monotonic clock, and looked at again
after the last round trip: an acquire never returns a lease that has ended.

Every try has a token of its own, so that the release of one try, delayed on the
network, cannot delete the vote of the next. Release goes to ALL nodes, also to
those that seemed to fail: they may have granted and only the answer been late.

Source: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
and for what it leaves open ``core.fence`` and ``core.guard``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.core.address import parse_nodes
from celery_redlock.core.ballot import Verdict, quorum_of
from celery_redlock.core.clock import SYSTEM_CLOCK, Clock
from celery_redlock.core.commands import Commands
from celery_redlock.core.deployment import NodesReport, check, initialize
from celery_redlock.core.failure import (
    delay_after,
    failure_of,
    ttl_left,
    unreachable,
)
from celery_redlock.core.fanout import Fanout, Transport
from celery_redlock.core.fence import Fence, stripe_of
from celery_redlock.core.guard import Guard
from celery_redlock.core.lease import (
    Holder,
    Inspection,
    Lease,
    LeaseState,
    new_base,
    new_token,
)
from celery_redlock.core.node import Node
from celery_redlock.core.timing import Timing, drift_of
from celery_redlock.core.waiting import Waiting
from celery_redlock.core.wakeup import Ears
from celery_redlock.errors import (
    ConfigurationError,
    LockContended,
    LockHeld,
    LockUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_redlock.core.address import NodeAddress

__all__ = ["Redlock"]

_TRIES_AT_ONCE = 5


class Redlock:
    """A lock service on N independent Redis masters.

    Building one opens nothing; connections are made on first use, in the
    background. Threads and greenlets may share one, and it survives a fork.

    Args:
        nodes: URLs, ``{"url": ..., "name": ...}`` or addresses; see
            ``core.address.parse_node``. 4 nodes survive no more losses than 3.
        ttl: Seconds for which nodes keep a lock that is not renewed.
        max_ttl: Seconds that no ttl may exceed: how long a node that lost its
            memory stays out of the vote. All clients must use the same.
        node_timeout: Seconds that a node may take to answer.
        connect_timeout: Seconds that a connection may take to be made.
        prefix: Of all keys on the nodes.
        restart_guard: Keep restarted nodes out of the vote; see ``core.guard``.
        clock, transport: For tests: time, and how to reach the nodes.

    Attributes:
        addresses, labels: The nodes, in the order given, and their names.
        quorum: How many of them are a majority.
        timing: The durations, checked against each other.
        commands: With which keys and arguments scripts are called here.
        guard: Looks after nodes that may not vote yet.
        ears: Hear of releases. None where the transport is given: a wait asks and asks.

    Raises:
        ConfigurationError: A value cannot be used. Says which, and the remedy.
    """

    def __init__(  # noqa: PLR0913  (keyword-only, one line each in the docstring)
        self,
        nodes: Sequence[str | Mapping[str, str] | NodeAddress],
        *,
        ttl: float = 30.0,
        max_ttl: float = 60.0,
        node_timeout: float = 0.05,
        connect_timeout: float = 1.0,
        prefix: str = "redlock",
        restart_guard: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        transport: Transport | None = None,
    ) -> None:
        self.addresses = parse_nodes(nodes)
        self.timing = Timing(ttl, max_ttl, node_timeout, connect_timeout)
        self.clock = clock
        self.labels = tuple(address.name for address in self.addresses)
        self.quorum = quorum_of(len(self.labels))
        self.transport: Transport = transport or Fanout(
            [
                Node(address, clock=clock, connect_timeout=self.timing.connect_timeout)
                for address in self.addresses
            ],
            clock=clock,
            timing=self.timing,
        )
        self.ears = None if transport else Ears(self.addresses, prefix, self.timing)
        self.guard = Guard(
            self.transport,
            prefix=prefix,
            timing=self.timing,
            clock=clock,
            enabled=restart_guard,
        )
        self._fence = Fence(self.transport, self.guard.fence_key)
        self.commands = Commands(
            self.labels, guard=self.guard, clock=clock, insist=self.timing.max_ttl
        )

    def acquire(
        self,
        key: str,
        ttl: float | None = None,
        wait: float = 0.0,
        *,
        base: str | None = None,
        facts: Holder | None = None,
    ) -> Lease:
        """Take the lock, or raise. Never returns an invalid lease.

        Args:
            key: The name to lock.
            ttl: Seconds; the service's ttl by default.
            wait: Seconds to wait for it, in line with others. At 0 a lock that is held
                is an error at once, and split votes are tried at most five times.
            base: First part of the token, when somebody else must be able to
                release this execution's locks; random by default.
            facts: What others see of the holder; this process by default.

        Raises:
            LockHeld: A majority names another holder.
            LockContended: The votes were split, again and again.
            QuorumUnreachable: Too few nodes answered, or are in quarantine.
            ConfigurationError: The ttl or the key cannot be used.
                After each of them nothing is held.
        """
        if not key or "\n" in key:
            raise ConfigurationError(f"The key {key!r} must be one line of text.")
        ttl = self.timing.ttl if ttl is None else self.timing.checked(ttl)
        base = base or new_base()
        facts = facts or Holder.here(started=self.clock.wall_us() / 1e6)
        give_up_at = self.clock.monotonic() + wait
        tries, waiting, outcome = 0, None, None
        try:
            while True:
                began = self.clock.monotonic()
                outcome = self._attempt(key, ttl, new_token(base), facts.facts())
                if isinstance(outcome, Lease):
                    return outcome
                if outcome.ballot and self.guard.recover(outcome.ballot):
                    continue
                tries, now = tries + 1, self.clock.monotonic()
                if self.ears and now < give_up_at and isinstance(outcome, LockHeld):
                    waiting = waiting or Waiting(key, self.ears, self)
                    waiting.pause(give_up_at)
                    tries = 0
                    continue
                delay = delay_after(outcome, tries, ttl=ttl, took=now - began)
                again = isinstance(outcome, LockContended) and tries < _TRIES_AT_ONCE
                if now + delay > give_up_at and not again:
                    raise outcome
                self.clock.sleep(delay)
        finally:
            if waiting:
                waiting.end(acquired=isinstance(outcome, Lease))

    def _attempt(
        self, key: str, ttl: float, token: str, facts: str
    ) -> Lease | LockUnavailable:
        question = self.commands.acquire(key, ttl=ttl, token=token, facts=facts)
        ballot = question.ballot
        started_at = self.clock.monotonic()
        try:
            self.transport.ask(question)
            if ballot.final_verdict() is Verdict.WON:
                fence = self._fence.settle(
                    ballot,
                    lock_key=self.commands.lock_key(key),
                    token=token,
                    facts=facts,
                    stripe=stripe_of(key),
                )
                self.guard.consider(ballot)
                until = started_at + ttl - drift_of(ttl)
                if fence is not None and self.clock.monotonic() < until:
                    return Lease(
                        key=key,
                        token=token,
                        facts=facts,
                        fence=fence,
                        ttl=ttl,
                        started_at=started_at,
                        until=until,
                        votes=ballot.granted,
                        clock=self.clock,
                        confirm=self.confirm,
                    )
        except BaseException:
            self.transport.send(self.commands.release(key, token, since=started_at))
            raise
        failure = failure_of(key, ballot, node_timeout=self.timing.node_timeout)
        if ballot.granted or ballot.answered < len(self.labels):
            # Not waited for: whatever is sent next on a connection comes after it.
            self.transport.send(self.commands.release(key, token, since=started_at))
        return failure

    def extend(self, lease: Lease) -> bool:
        """Renew the lease now. Return whether its validity has moved.

        False leaves it as valid as it was before; it can be tried again until
        its validity ends. A lease that has ended is never resurrected.
        """
        extension = self.commands.extension(lease)
        return extension.carry_through(self.transport, self.timing.node_timeout)

    def release(self, lease: Lease, *, keep: float = 0.0) -> int:
        """Let go of the lock on all nodes. Twice is harmless.

        Take the lease out of renewal first (``Watchdog.forget``). After a loss
        this never touches a successor's lock.

        Args:
            lease: What ``acquire`` returned.
            keep: Seconds for which nodes keep the lock instead of deleting it
                (``hold_at_least``).

        Returns:
            How many nodes said that it was still ours, by the time that a majority
            had answered. The others are told too; one that is away, when it is back.
        """
        if lease.state is LeaseState.HELD:
            lease.state = LeaseState.RELEASED
        question = self.commands.release(
            lease.key, lease.token, keep=keep, since=lease.started_at
        )
        self.transport.ask(question)
        return question.ballot.granted

    def release_base(self, key: str, base: str) -> int:
        """Release whatever attempt of this execution holds the key.

        For those who outlive the holder: the worker's main process frees the
        lock of a child that is gone. Returns as ``release`` does.
        """
        question = self.commands.release(key, f"{base}.")
        self.transport.ask(question)
        return question.ballot.granted

    def inspect(self, key: str) -> Inspection:
        """Tell who holds the key now. Changes nothing and promises nothing."""
        question = self.commands.inspect(key)
        self.transport.ask(question)
        ballot = question.ballot
        token, votes = ballot.top_taker
        held = votes >= ballot.quorum
        return Inspection(
            key=key,
            holder=Holder.parse(ballot.holder_value()) if held else None,
            votes=votes,
            ttl_left=ttl_left(ballot, token) if held else 0.0,
            ballot=ballot,
        )

    def confirm(self, lease: Lease) -> None:
        """Ask the nodes whether the lease is still the holder; raise if not.

        Raises:
            LockLost: A majority does not hold it for this lease any more.
            QuorumUnreachable: Too few nodes answered to tell.
        """
        ballot = self.inspect(lease.key).ballot
        ours = ballot.votes_for(lease.token)
        if ours >= self.quorum:
            return
        if ours + len(self.labels) - ballot.answered >= self.quorum:
            timeout = self.timing.node_timeout
            raise unreachable(lease.key, ballot, node_timeout=timeout)
        raise lease.lost_error()

    def check(self) -> NodesReport:
        """Ask every node for a vote that locks nothing anybody wants, and report."""
        return check(self.guard, self.commands, self.transport, self.timing.ttl)

    def initialize(self) -> None:
        """Start a brand-new deployment without waiting for the restart guard.

        Raises:
            RedlockError: A node cannot be reached, or holds live locks, which
                shows that the deployment is not new. Nothing was changed.
        """
        initialize(self.guard, self.addresses, self.timing.connect_timeout)

    def close(self) -> None:
        """Close all connections. The next use opens them again."""
        if self.ears:
            self.ears.close()
        self.transport.close()

    def __repr__(self) -> str:
        return f"<Redlock {', '.join(self.labels)}>"
