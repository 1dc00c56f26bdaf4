"""Acquire, extend, release and inspect locks on a majority of nodes.

::

    acquire ──► ask all nodes ──► won ──► agree on a fence ──► lease
                  ▲      │
                  │      └─ held / contended / unreachable ──► release what was
                  │                                            granted, then
                  └── random delay, new token ◄── try again ◄──┘   or raise
                      (or until it is released: see core.wait_queue)

A lease is valid for ``ttl − (now − time before the attempt's first send) − drift``
with ``drift = 1 % of ttl + 2 ms``, by a monotonic clock. The validity is checked again
after the last round trip: an acquire never returns a lease that has ended.

Every try has a token of its own. So the release of one try, delayed on the network,
cannot delete the vote of the next. A release goes to ALL nodes, also to those that
seemed to fail: they may have granted the lock, and only the answer was late.

Source: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
and, for what that page leaves open, ``core.fence`` and ``core.restart_guard``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.core.clock import SYSTEM_CLOCK, Clock
from celery_redlock.core.deployment import NodesReport, initialize
from celery_redlock.core.extension import Extension
from celery_redlock.core.failure import (
    delay_after,
    failure_of,
    ttl_left,
    unreachable,
)
from celery_redlock.core.fence import raise_fence
from celery_redlock.core.keys import Keys, stripe_of
from celery_redlock.core.lease import (
    Holder,
    Inspection,
    Lease,
    LeaseState,
    end_of_validity,
    new_base,
    new_token,
)
from celery_redlock.core.quorum import Ballot, Verdict
from celery_redlock.core.restart_guard import RestartGuard
from celery_redlock.core.scripts import ACQUIRE, INSPECT, RELEASE
from celery_redlock.core.timing import Timing
from celery_redlock.core.transport.broadcast import Broadcast
from celery_redlock.core.transport.node import Node
from celery_redlock.core.transport.pubsub import WakeupListener
from celery_redlock.core.transport.requests import (
    Nodes,
    all_answered,
    majority_answered,
    verdict_is_certain,
)
from celery_redlock.core.transport.url import parse_nodes
from celery_redlock.core.wait_queue import WaitQueue
from celery_redlock.errors import (
    ConfigurationError,
    LockContended,
    LockHeld,
    LockUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_redlock.core.transport.requests import ScriptRequest, Transport
    from celery_redlock.core.transport.url import NodeAddress

__all__ = ["Redlock"]

_TRIES_AT_ONCE = 5
_MS, _US = 1000, 1_000_000


class Redlock:
    """A lock service on N independent Redis masters.

    Building one opens nothing. Connections are made on first use, in the background.
    Threads and greenlets may share one, and it survives a fork.

    Args:
        nodes: URLs, ``{"url": ..., "name": ...}`` or addresses; see
            ``core.transport.url.parse_node``. 4 nodes survive no more losses than 3.
        ttl: Seconds for which nodes keep a lock that is not renewed.
        max_ttl: Seconds that no ttl may exceed. A node that lost its memory stays out
            of the vote for that long. All clients must use the same.
        node_timeout: Seconds that a node may take to answer.
        connect_timeout: Seconds that a connection may take to be made.
        prefix: The start of the names of all keys on the nodes.
        restart_guard: Keep restarted nodes out of the vote; see ``core.restart_guard``.
            All clients must use the same.
        clock: For tests: reads time.
        transport: For tests: reaches the nodes.

    Attributes:
        addresses, labels: The nodes, in the order given, and their names.
        quorum: How many of them are a majority.
        keys: The names of the keys on the nodes.
        timing: The durations, checked against each other.
        nodes: Builds script requests to all nodes and sends them.
        guard: Brings nodes that may not vote yet back to the vote.
        listener: Hears when a lock is released. None where a transport is given: a
            wait then polls.

    Raises:
        ConfigurationError: A value cannot be used. The message names it and the remedy.
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
        self.keys = Keys(prefix)
        self.transport: Transport = transport or Broadcast(
            [
                Node(address, clock=clock, connect_timeout=self.timing.connect_timeout)
                for address in self.addresses
            ],
            clock=clock,
            timing=self.timing,
        )
        self.listener = (
            None
            if transport
            else WakeupListener(self.addresses, self.keys, self.timing)
        )
        self.nodes = Nodes(self.transport, clock=clock, resend_for=self.timing.max_ttl)
        self.labels = self.nodes.labels
        self.quorum = self.nodes.quorum
        self.guard = RestartGuard(
            self.nodes, keys=self.keys, timing=self.timing, enabled=restart_guard
        )
        self._last_won = Ballot(self.labels)

    # -- acquire -------------------------------------------------------------------

    def acquire(
        self,
        key: str,
        ttl: float | None = None,
        wait: float = 0.0,
        *,
        base: str | None = None,
        holder: Holder | None = None,
    ) -> Lease:
        """Take the lock, or raise. Never return an invalid lease.

        Args:
            key: The name of the lock.
            ttl: Seconds; the service's ttl by default.
            wait: Seconds to wait for the lock, in a queue with other clients. At 0 a
                lock that is held is an error at once, and split votes are tried at
                most five times.
            base: First part of the token, for when another process must be able to
                release the locks of this execution; random by default.
            holder: What other clients see of the holder; this process by default.

        Raises:
            LockHeld: A majority names another holder.
            LockContended: The votes were split, again and again.
            QuorumUnreachable: Too few nodes answered, or are in quarantine.
            ConfigurationError: The ttl or the key cannot be used.
                After each of them nothing is held.
        """
        if not key or "\n" in key:
            raise ConfigurationError(f"The key {key!r} must be one line of text.")
        default_ttl = self.timing.ttl
        if ttl is None:
            ttl = default_ttl
        elif ttl != default_ttl:
            ttl = self.timing.checked(ttl)
        base = base or new_base()
        holder = holder or Holder.here(started=self.clock.wall())
        give_up_at = self.clock.monotonic() + wait
        tries, queue, outcome = 0, None, None
        try:
            while True:
                began = self.clock.monotonic()
                outcome = self._attempt(key, ttl, new_token(base), holder.info())
                if isinstance(outcome, Lease):
                    return outcome
                if outcome.ballot and self.guard.recover(outcome.ballot):
                    continue
                tries, now = tries + 1, self.clock.monotonic()
                if self.listener and now < give_up_at and isinstance(outcome, LockHeld):
                    queue = queue or WaitQueue(
                        key, self.nodes, self.keys, self.listener
                    )
                    queue.pause(give_up_at)
                    tries = 0
                    continue
                delay = delay_after(outcome, tries, ttl=ttl, took=now - began)
                again = isinstance(outcome, LockContended) and tries < _TRIES_AT_ONCE
                if now + delay > give_up_at and not again:
                    raise outcome
                self.clock.sleep(delay)
        finally:
            if queue:
                queue.end(acquired=isinstance(outcome, Lease))

    def _attempt(
        self, key: str, ttl: float, token: str, holder_info: str
    ) -> Lease | LockUnavailable:
        request = self.acquire_request(
            key, ttl=ttl, token=token, holder_info=holder_info
        )
        ballot = request.ballot
        started_at = self.clock.monotonic()
        try:
            self.transport.ask(request)
            if ballot.final_verdict() is Verdict.WON:
                fence = ballot.agreed_number()
                if fence is None:
                    keys = (self.keys.lock(key), self.keys.meta)
                    args = (token, holder_info, stripe_of(key))
                    fence = raise_fence(ballot, self.nodes, keys, args)
                self._recover_late_voters(ballot)
                until = end_of_validity(started_at, ttl)
                if fence is not None and self.clock.monotonic() < until:
                    return Lease(
                        key=key,
                        token=token,
                        holder_info=holder_info,
                        fence=fence,
                        ttl=ttl,
                        started_at=started_at,
                        until=until,
                        votes=ballot.granted,
                        clock=self.clock,
                        confirm=self.confirm,
                    )
        except BaseException:
            self._send_release(key, token, since=started_at)
            raise
        failure = failure_of(
            key,
            ballot,
            node_timeout=self.timing.node_timeout,
            config=self.guard.config,
        )
        if ballot.granted or ballot.answered < len(self.labels):
            # Not waited for: later requests on a connection come after it.
            self._send_release(key, token, since=started_at)
        return failure

    def _recover_late_voters(self, won: Ballot) -> None:
        """Recover the unsynced nodes of a ballot that was won without them.

        Also those of the ballot before: an early verdict does not wait for their
        votes, but by now the votes have come in.
        """
        before, self._last_won = self._last_won, won
        if (won.unsynced or before.unsynced) and not self.guard.recover(won):
            self.guard.recover(before)

    def acquire_request(
        self,
        key: str,
        *,
        ttl: float,
        token: str,
        holder_info: str,
        done_when: Callable[[Ballot], bool] = verdict_is_certain,
    ) -> ScriptRequest:
        """Build the request of one attempt to take the lock."""
        guard = self.guard
        return self.nodes.request(
            ACQUIRE,
            (self.keys.lock(key), self.keys.meta),
            (
                token,
                holder_info,
                round(ttl * _MS),
                stripe_of(key),
                round(self.clock.wall() * _US),
                guard.hint_tolerance_us,
                guard.config,
                guard.quarantine_ms,
            ),
            done_when=done_when,
        )

    # -- renew and release ---------------------------------------------------------

    def extend(self, lease: Lease) -> bool:
        """Renew the lease now. Return whether its validity has moved.

        After False the lease is as valid as before. It can be renewed again until its
        validity ends. A lease that has ended is never resurrected. A forked child
        cannot renew the lease of its parent, and asks no node.
        """
        if lease.is_inherited():
            return False
        return self.extension(lease).carry_through(self.timing.node_timeout)

    def extension(self, lease: Lease) -> Extension:
        """Begin a renewal of this lease, for a caller that sends it."""
        return Extension(lease, self.nodes, self.keys, self.guard)

    def release(self, lease: Lease, *, keep: float = 0.0) -> int:
        """Release the lock on all nodes. Twice is harmless.

        Take the lease out of renewal first (``Watchdog.forget``). After a loss
        this never touches a successor's lock. A forked child cannot release the lease
        of its parent, and asks no node.

        Args:
            lease: The result of ``acquire``.
            keep: Seconds for which nodes keep the lock instead of deleting it
                (``hold_at_least``).

        Returns:
            How many nodes still held the lock for this lease, by the time that a
            majority had answered. All nodes are asked. A node that is away is asked
            when it reconnects.
        """
        if lease.is_inherited():
            return 0
        if lease.state is LeaseState.HELD:
            lease.state = LeaseState.RELEASED
        request = self.release_request(
            lease.key, lease.token, keep=keep, since=lease.started_at
        )
        self.transport.ask(request)
        return request.ballot.granted

    def release_base(self, key: str, base: str) -> int:
        """Release any lock on the key that an attempt of this execution got.

        For a process that outlives the holder: the worker's main process releases
        the lock of a child that is gone. Returns as ``release`` does.
        """
        request = self.release_request(key, f"{base}.")
        self.transport.ask(request)
        return request.ballot.granted

    def release_request(
        self, key: str, prefix: str, *, keep: float = 0.0, since: float = 0.0
    ) -> ScriptRequest:
        """Build the request that releases the lock, now or in ``keep`` seconds.

        Args:
            key: The name of the lock.
            prefix: The start of the token.
            keep: Seconds for which nodes keep the lock instead of deleting it.
            since: Instant at which the lock was first asked for. A node that was away
                ever since has nothing to release, and gets no release when it
                reconnects.
        """
        return self.nodes.request(
            RELEASE,
            (self.keys.lock(key), self.keys.wait_queue(key)),
            (prefix, max(0, round(keep * _MS))),
            done_when=majority_answered,
            resend=True,
            resend_since=since,
        )

    def _send_release(self, key: str, token: str, *, since: float) -> None:
        self.transport.send(self.release_request(key, token, since=since))

    # -- ask -----------------------------------------------------------------------

    def inspect(self, key: str) -> Inspection:
        """Tell who holds the key now. Changes nothing and promises nothing."""
        ballot = self.nodes.ask(
            INSPECT, (self.keys.lock(key),), done_when=all_answered
        ).ballot
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
            LockLost: A majority does not hold the lock for this lease any more.
            QuorumUnreachable: Too few nodes answered to tell.
        """
        ballot = self.inspect(lease.key).ballot
        ours = ballot.votes_for(lease.token)
        if ours >= self.quorum:
            return
        if ours + len(self.labels) - ballot.answered >= self.quorum:
            raise unreachable(
                lease.key,
                ballot,
                node_timeout=self.timing.node_timeout,
                config=self.guard.config,
                state=f"The lease is valid for {lease.remaining():.1f} s more",
            )
        raise lease.lost_error()

    def check(self) -> NodesReport:
        """Ask every node for a vote on a lock that no other client wants; report.

        A node that must go into quarantine goes now and not with the first task.
        """
        base = new_base()
        key, token = f"check:{base}", new_token(base)
        request = self.acquire_request(
            key,
            ttl=self.timing.ttl,
            token=token,
            holder_info="",
            done_when=all_answered,
        )
        self.transport.ask(request)
        self._send_release(key, token, since=0.0)
        self.guard.recover(request.ballot)
        return NodesReport(request.ballot)

    # -- life cycle ----------------------------------------------------------------

    def initialize(self) -> None:
        """Start a brand-new deployment without waiting for the restart guard.

        Raises:
            RedlockError: A node cannot be reached, or holds live locks, which
                shows that the deployment is not new. Nothing was changed.
        """
        initialize(self.guard, self.addresses, self.timing.connect_timeout)

    def close(self) -> None:
        """Close all connections. The next use opens them again."""
        if self.listener:
            self.listener.close()
        self.transport.close()

    def __repr__(self) -> str:
        return f"<Redlock {', '.join(self.labels)}>"
