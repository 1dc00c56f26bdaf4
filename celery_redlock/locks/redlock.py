"""Acquire, extend, release and inspect locks on a majority of nodes.

::

    acquire ──► ask all nodes ──► won ──► agree on a fence ──► lease
                  ▲      │
                  │      └─ held / contended / unreachable ──► release what was
                  │                                            granted, then
                  └── random delay, new token ◄── try again ◄──┘   or raise
                      (or until it is released: see locks.wait_queue)

A lease is valid for ``ttl − (now − time before the attempt's first send) − drift``
with ``drift = 1 % of ttl + 2 ms``, by a monotonic clock. The validity is checked again
after the last round trip: an acquire never returns a lease that has ended.

Every try has a token of its own. So the release of one try, delayed on the network,
cannot delete the vote of the next. A release goes to ALL nodes, also to those that
seemed to fail: they may have granted the lock, and only the answer was late.

Source: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
and, for what that page leaves open, ``locks.fence`` and ``members.restart_guard``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from celery_redlock.basics.clock import SYSTEM_CLOCK, Clock
from celery_redlock.basics.secret import hidden
from celery_redlock.basics.timing import Timing, check_number, seconds_text
from celery_redlock.errors import (
    ConfigurationError,
    LockContended,
    LockHeld,
    LockUnavailable,
    QuorumUnreachable,
    RedlockError,
)
from celery_redlock.locks.extension import Extension
from celery_redlock.locks.failure import (
    delay_after,
    ends_in,
    failure_of,
    unreachable,
)
from celery_redlock.locks.fence import raise_fence
from celery_redlock.locks.lease import (
    Holder,
    Inspection,
    Lease,
    LeaseState,
    drift_of,
    end_of_validity,
    new_base,
    new_token,
)
from celery_redlock.locks.limits import START_WITHIN
from celery_redlock.locks.permits import (
    Choice,
    RecentPermits,
    lock_name,
    occupancies,
    words_of,
)
from celery_redlock.locks.wait_queue import WaitQueue
from celery_redlock.members.deployment import NodesReport, initialize
from celery_redlock.members.restart_guard import RestartGuard
from celery_redlock.scripts import (
    ACQUIRE,
    ACQUIRE_PERMITS,
    INSPECT,
    INSPECT_PERMITS,
    RELEASE,
)
from celery_redlock.scripts.keys import (
    Keys,
    key_of,
    stripe_of,
    stripes_of,
    unusable,
)
from celery_redlock.stores.connection import StoreError, is_store, store_of
from celery_redlock.wire.broadcast import Broadcast
from celery_redlock.wire.node import Node
from celery_redlock.wire.pubsub import WakeupListener
from celery_redlock.wire.quorum import Ballot, Verdict
from celery_redlock.wire.requests import (
    Nodes,
    all_answered,
    majority_answered,
    verdict_is_certain,
)
from celery_redlock.wire.steps import Ask, Blocking, Listen, Sleep
from celery_redlock.wire.url import parse_nodes, usual_node_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_redlock.locks.limits import Limit, Limits
    from celery_redlock.locks.permits import Occupancy
    from celery_redlock.wire.requests import ScriptRequest, Transport
    from celery_redlock.wire.steps import Steps
    from celery_redlock.wire.url import NodeAddress


T = TypeVar("T")

_TRIES_AT_ONCE = 5
_MS, _US = 1000, 1_000_000
_OWN_TIME = -1  # in place of a hint: the node numbers by its own time


class Redlock:
    """A lock service on N independent Redis masters, or in one store.

    Building one opens nothing. Connections are made on first use, in the background.
    Threads and greenlets may share one, it survives a fork, and it can be pickled.

    Args:
        nodes: URLs, ``{"url": ..., "name": ...}`` or addresses; see
            ``wire.url.parse_node``. 4 nodes survive no more losses than 3.
        ttl: Seconds for which nodes keep a lock that is not renewed.
        max_ttl: Seconds that no ttl may exceed. A node that lost its memory stays out
            of the vote for that long. All clients must use the same.
        node_timeout: Seconds that a node may take to answer; 0.05 by default, or 0.5
            for a store, whose commits wait for its disk.
        connect_timeout: Seconds that a connection may take to be made.
        prefix: The start of the names of all keys on the nodes.
        restart_guard: Keep restarted nodes out of the vote; see
            ``members.restart_guard``. All clients must use the same.
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
        permits: The permits that this process had last, where keys have limits.
        asks_for_votes: Whether commands that show the nodes may ask for votes. Not if
            the nodes may be a part of a deployment (``--node``): a node that has lost
            its memory would found another one with them.

    Raises:
        ConfigurationError: A value cannot be used. The message names it and the remedy.
    """

    def __init__(  # noqa: PLR0913  (keyword-only, one line each in the docstring)
        self,
        nodes: Sequence[str | Mapping[str, str] | NodeAddress],
        *,
        ttl: float = 30.0,
        max_ttl: float = 60.0,
        node_timeout: float | None = None,
        connect_timeout: float = 1.0,
        prefix: str = "redlock",
        restart_guard: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        transport: Transport | None = None,
    ) -> None:
        nodes = hidden(nodes)
        self.addresses = parse_nodes(nodes)
        if node_timeout is None:
            node_timeout = usual_node_timeout(self.addresses)
        self.timing = Timing(ttl, max_ttl, node_timeout, connect_timeout)
        self.clock = clock
        self.keys = Keys(prefix)
        connect_timeout = self.timing.connect_timeout
        self.transport: Transport = transport or Broadcast(
            [
                Node(address, index, clock=clock, connect_timeout=connect_timeout)
                for index, address in enumerate(self.addresses)
            ],
            clock=clock,
            timing=self.timing,
        )
        self.listener = (
            None
            if transport
            else WakeupListener(self.addresses, self.keys, self.timing)
        )
        self.nodes = Nodes(self.transport, clock=clock)
        self.labels = self.nodes.labels
        self.quorum = self.nodes.quorum
        self.guard = RestartGuard(
            self.nodes, keys=self.keys, timing=self.timing, enabled=restart_guard
        )
        self._last_won = Ballot(self.labels)
        self.permits = RecentPermits()
        self.asks_for_votes = True
        self._is_of_tests = clock is not SYSTEM_CLOCK or transport is not None

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what another process needs for its own service on these nodes.

        That is the addresses, with their passwords, and the settings. A copy has no
        lease and no connection of this service.
        """
        if self._is_of_tests:
            raise TypeError(
                f"{self!r} cannot be pickled or copied: it has a clock or a transport "
                "of a test, which no other process has. Make one there."
            )
        timing = self.timing
        settings: dict[str, Any] = {
            "ttl": timing.ttl,
            "max_ttl": timing.max_ttl,
            "node_timeout": timing.node_timeout,
            "connect_timeout": timing.connect_timeout,
            "prefix": self.keys.prefix,
            "restart_guard": self.guard.enabled,
        }
        return partial(type(self), self.addresses, **settings), ()

    # -- acquire -------------------------------------------------------------------

    def acquire(  # noqa: PLR0913  (keyword-only, one line each in the docstring)
        self,
        key: str | Sequence[str],
        ttl: float | None = None,
        wait: float = 0.0,
        *,
        base: str | None = None,
        holder: Holder | None = None,
        limits: Limits = (),
    ) -> Lease:
        """Take the lock, or raise. Never return an invalid lease.

        An interruption inside (a time limit, KeyboardInterrupt) leaves nothing locked.
        One that comes after the return, and before the lease has a name, leaves the
        lock until its ttl has ended. Use `lock`, or pass a ``base`` and call
        `release_base`, where that can happen.

        Args:
            key: The name of the lock, or a list of several: then all of them are
                taken or none, by one lease with one fence.
            ttl: Seconds; the service's ttl by default.
            wait: Seconds to wait for the lock, in a queue with other clients. At 0 a
                lock that is held is an error at once. Split votes, a request that a
                signal handler has cut off, and one for which nodes had lost their
                scripts, are tried at most five times.
            base: First part of the token, for when another process must be able to
                release the locks of this execution; random by default.
            holder: What other clients see of the holder; this process by default.
            limits: How many holders the keys may have, and how many starts, if not
                one holder each; see ``locks.permits``. A start begins with the grant.

        Raises:
            LockHeld: A majority names another holder.
            LockContended: The votes were split, again and again.
            QuorumUnreachable: Too few nodes answered, or are in quarantine.
            ConfigurationError: The ttl, the wait or the key cannot be used.

        After each of these this client holds nothing. If a connection broke before the
        answer, that node may keep the lock until it is reached again, at most for the
        ttl.
        """
        steps = self.acquiring(
            key_of(key), ttl, wait, base=base, holder=holder, limits=limits
        )
        return self.carry_out(self._beginning(steps))

    async def aacquire(  # noqa: PLR0913  (keyword-only, see ``acquire``)
        self,
        key: str | Sequence[str],
        ttl: float | None = None,
        wait: float = 0.0,
        *,
        base: str | None = None,
        holder: Holder | None = None,
        limits: Limits = (),
    ) -> Lease:
        """Take the lock as ``acquire`` does, in a coroutine.

        It takes no thread and blocks no event loop. A cancellation leaves nothing
        locked.
        """
        from celery_redlock.wire.event_loop import drive  # noqa: PLC0415  (slow import)

        steps = self.acquiring(
            key_of(key), ttl, wait, base=base, holder=holder, limits=limits
        )
        return await drive(self._beginning(steps), self.transport)

    def _beginning(self, steps: Steps[Lease]) -> Steps[Lease]:
        """Acquire by these steps, and begin; an interruption leaves nothing locked."""
        lease = yield from steps
        try:
            lease.begin()
        except BaseException:
            since, choice = lease.started_at, lease.choice
            self._send_release(lease.key, lease.token, since=since, choice=choice)
            raise
        return lease

    def acquiring(  # noqa: PLR0913  (keyword-only, see ``acquire``)
        self,
        key: str,
        ttl: float | None = None,
        wait: float = 0.0,
        *,
        base: str | None = None,
        holder: Holder | None = None,
        limits: Limits = (),
    ) -> Steps[Lease]:
        """Return the steps of ``acquire``, for a caller that carries them out.

        The key is the text that ``scripts.keys.key_of`` makes of all keys. Who needs a
        permit for a start calls ``Lease.begin`` when it starts.
        """
        if not key or wait != 0.0:
            _check(key, wait)
        if ttl != self.timing.ttl:  # most are, and pay for no check
            ttl = self.timing.ttl if ttl is None else self.timing.checked(ttl)
        base = base or new_base()
        holder = holder or Holder.here(started=self.clock.wall())
        give_up_at = self.clock.monotonic() + wait
        choice = Choice(limits, self.permits) if limits else None
        tries, queue, outcome = 0, None, None
        try:
            while True:
                began = self.clock.monotonic()
                if outcome is not None and holder.started:  # not since it began to wait
                    holder = replace(holder, started=self.clock.wall())
                outcome = yield from self._attempt(
                    key, ttl, new_token(base), holder, choice
                )
                if isinstance(outcome, Lease):
                    return outcome
                helps = yield from self._recover(outcome.ballot)
                if helps or (choice is not None and choice.tries_others()):
                    continue
                tries, now = tries + 1, self.clock.monotonic()
                if self.listener and now < give_up_at and isinstance(outcome, LockHeld):
                    queue = queue or WaitQueue(
                        key, self.nodes, self.keys, self.listener, choice
                    )
                    yield from queue.pause(give_up_at)
                    tries = 0
                    continue
                delay = delay_after(outcome, tries, ttl=ttl, took=now - began)
                again = tries < _TRIES_AT_ONCE and _is_passing(outcome)
                if now + delay > give_up_at and not again:
                    raise outcome
                yield Sleep(delay)
        finally:
            if queue:
                queue.end(acquired=isinstance(outcome, Lease))
            outcome = None  # an error that is raised leads to this frame: no cycle

    def _attempt(
        self, key: str, ttl: float, token: str, holder: Holder, choice: Choice | None
    ) -> Steps[Lease | LockUnavailable]:
        name = choice.key if choice else key  # of the lease
        holder_info = holder.info(name, choice.limits if choice else ())
        request = self.acquire_request(
            key, ttl=ttl, token=token, holder_info=holder_info, choice=choice
        )
        ballot = request.ballot
        started_at = self.clock.monotonic()
        try:
            yield Ask(request)
            if ballot.final_verdict() is Verdict.WON:
                fence = ballot.agreed_number()
                if fence is None:
                    fence = yield from raise_fence(
                        ballot,
                        self.nodes,
                        [*self.keys.locks(name), self.keys.meta],
                        (token, holder_info),
                        stripes_of(name),
                    )
                # Also the ballot before: late votes have come in by now.
                before, self._last_won = self._last_won, ballot
                for voted in (ballot, before):
                    if (yield from self._recover(voted)):
                        break
                until = end_of_validity(started_at, ttl)
                if fence is not None and self.clock.monotonic() < until:
                    lease = Lease(
                        key=name,
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
                    if choice is not None:
                        lease.choice = choice
                        lease.begin_by = started_at + ttl + START_WITHIN
                        lease.on_begin = self._keep_starts
                    return lease
        except BaseException:
            self._send_release(key, token, since=started_at, choice=choice)
            raise
        if ballot.granted or ballot.answered < len(self.labels):
            # Not waited for: later requests on a connection come after it.
            self._send_release(key, token, since=started_at, choice=choice)
        if choice is not None:
            choice.choose_again(ballot, request.replies)
        return failure_of(
            key,
            ballot,
            config=self.guard.config,
            ttl=ttl,
            choice=choice,
        )

    def _recover(self, ballot: Ballot | None) -> Steps[bool]:
        """Bring the nodes back to the vote that did not vote on this ballot.

        Returns:
            Steps. Their result says whether to ask again: see `RestartGuard.recover`.
        """
        if ballot is None or not (ballot.leaves_work or ballot.longest_wait_ms):
            return False  # as a rule
        helps = self.guard.recover_at_once(ballot)
        if helps is None:  # a coroutine takes a thread for this
            return bool((yield Blocking(self.guard.reconcile)))
        return helps

    def acquire_request(  # noqa: PLR0913  (keyword-only)
        self,
        key: str,
        *,
        ttl: float,
        token: str,
        holder_info: str,
        done_when: Callable[[Ballot], bool] = verdict_is_certain,
        choice: Choice | None = None,
    ) -> ScriptRequest:
        """Build the request of one attempt to take the lock, or these permits."""
        guard = self.guard
        words = (
            token,
            holder_info,
            round(ttl * _MS),
            _OWN_TIME if guard.decides_alone else round(self.clock.wall() * _US),
            guard.hint_tolerance_us,
            guard.config,
        )
        if choice is None:
            return self.nodes.request(
                ACQUIRE,
                (*self.keys.locks(key), self.keys.meta),
                (*words, *stripes_of(key)),
                done_when=done_when,
            )
        stripes = [stripe_of(name) for _, name in choice.pairs]
        if choice.call:
            stripes[0] = stripes[1]  # copies need no fence of their own
        kept = words_of(choice.limits, self.keys, partial(_kept, ttl))
        return self.nodes.request(
            ACQUIRE_PERMITS,
            (*choice.locks(self.keys), self.keys.meta),
            (*words, *stripes, *kept),
            done_when=done_when,
        )

    # -- renew and release ---------------------------------------------------------

    def extend(self, lease: Lease) -> bool:
        """Renew the lease now. Return whether its validity has moved.

        After False the lease is as valid as before, and can be renewed again until its
        validity ends, unless an operator released it: then it has ended. A lease that
        has ended is never resurrected. A forked child cannot renew the lease of its
        parent, and asks no node.
        """
        if lease.is_inherited():
            return False
        return self.extension([lease]).carry_through()

    def extension(self, leases: Sequence[Lease]) -> Extension:
        """Return a renewal of these leases, for the caller to send."""
        return Extension(leases, self.nodes, self.keys, self.guard)

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
            majority had answered. All nodes are asked. A node that is away, or must
            not vote, is asked when it is back: with the next request of this service,
            or by its watchdog, which a block, a task or an `Elector` has started.
        """
        return self.carry_out(self.releasing(lease, keep=keep))

    async def arelease(self, lease: Lease, *, keep: float = 0.0) -> int:
        """Release the lock as ``release`` does, in a coroutine.

        The release is handed over before the first await: a cancellation does not
        hold it up.
        """
        from celery_redlock.wire import event_loop  # noqa: PLC0415  (slow import)

        steps = self.releasing(lease, keep=keep)
        return await event_loop.drive_release(steps, self.transport) or 0

    def releasing(self, lease: Lease, *, keep: float = 0.0) -> Steps[int]:
        """Return the steps of ``release``, for a caller that carries them out."""
        if lease.is_inherited():
            return 0
        if lease.state is LeaseState.HELD:
            # A process that was suspended may be here before its watchdog has looked.
            is_valid = lease.is_valid()
            lease.state = LeaseState.RELEASED if is_valid else LeaseState.LOST
        choice, permits = lease.choice, None
        if choice is not None:
            permits = choice.held
            if not keep:
                permits = choice.call + permits
            elif choice.call:  # a retry need not wait
                self._release_permits(lease, choice.call)
            if choice.starts and lease.began_at is None:  # there was no start
                self._release_permits(lease, choice.starts)
            choice.give_back()
        request = self._release_request(
            lease.key, permits, lease.token, keep=keep, since=lease.started_at
        )
        return (yield from self.sending(request))

    def sending(self, release: ScriptRequest) -> Steps[int]:
        """Return the steps that send a release, and wait for a majority.

        Their result says how many nodes held the lock until then. A node that does not
        get it now gets it when it is back, also if the caller is interrupted.
        """
        try:
            yield Ask(release)
        finally:
            self.nodes.see_to(release)
        return release.ballot.granted

    def _keep_starts(self, lease: Lease) -> None:
        """Keep the permits for a start for one period from now on, the start."""
        for limit, name in lease.choice.starts if lease.choice else ():
            keep = limit.period + drift_of(limit.period)
            self._release_permits(lease, [(limit, name)], keep)

    def _release_permits(
        self, lease: Lease, permits: list[tuple[Limit, str]], keep: float = 0.0
    ) -> None:
        """Release some permits of a lease, or keep them for so many seconds.

        Nothing is waited for: later requests on a connection come after it.
        """
        request = self._release_request(
            lease.key, permits, lease.token, keep=keep, since=lease.started_at
        )
        self.nodes.send(request)

    def release_base(self, key: str, base: str, limits: Limits = ()) -> int:
        """Release any lock on the key that an attempt of this execution got.

        For a process that outlives the holder: the worker's main process releases
        the lock of a child that is gone. Permits for a start are left: they end when
        the period has passed. Returns as ``release`` does.

        Acquire with this base no more: a node that is away gets the release when it is
        back, and once more a second later.
        """
        at_once = tuple(limit for limit in limits if not limit.period)
        request = self.release_request(key, f"{base}.", at_once)
        return self.carry_out(self.sending(request))

    def release_request(
        self, key: str, prefix: str, limits: Limits = (), *, since: float = 0.0
    ) -> ScriptRequest:
        """Build the request that releases the lock, or all permits of these limits.

        Args:
            key: The name of the lock.
            prefix: The start of the token.
            limits: How many permits there are; empty for a plain lock.
            since: Instant at which the lock was first asked for; as below.
        """
        permits = [(limit, name) for limit in limits for name in limit.names()]
        return self._release_request(key, permits or None, prefix, since=since)

    def _release_request(
        self,
        key: str,
        permits: list[tuple[Limit, str]] | None,
        prefix: str,
        *,
        keep: float = 0.0,
        since: float,
    ) -> ScriptRequest:
        """Build the request that releases locks, now or in ``keep`` seconds.

        Args:
            key: The keys of a plain lock.
            permits: The limit and the name of each permit; None for a plain lock.
            prefix: The start of the token.
            keep: Seconds for which nodes keep the lock instead of deleting it.
            since: Instant at which the lock was first asked for. A node that was
                asked for nothing since then has nothing to release, and gets no
                release when it is back.
        """
        if permits is None:
            locks, queues = self.keys.locks(key), self.keys.wait_queues(key)
        else:
            locks = [lock_name(limit, name, self.keys) for limit, name in permits]
            queues = [self.keys.wait_queue(limit.key) for limit, _ in permits]
        return self.nodes.request(
            RELEASE,
            (*locks, *queues),
            (prefix, max(0, round(keep * _MS))),
            done_when=majority_answered,
            resend_for=self.timing.max_ttl,
            resend_since=since,
        )

    def _send_release(
        self, key: str, token: str, *, since: float, choice: Choice | None = None
    ) -> None:
        """Release all that an attempt may have been granted; wait for nothing."""
        permits = choice.pairs if choice else None
        self.nodes.send(self._release_request(key, permits, token, since=since))

    # -- ask -----------------------------------------------------------------------

    def inspect(self, key: str | Sequence[str]) -> Inspection:
        """Tell who holds the key now, or one of several. Changes and promises nothing.

        Where it names no majority holder, no key has one.
        """
        key = (
            key if isinstance(key, str) and "\n" in key else key_of(key, are_names=True)
        )
        ballot = self.nodes.ask(
            INSPECT, self.keys.locks(key), done_when=all_answered
        ).ballot
        _, votes = ballot.top_taker
        held = votes >= ballot.quorum
        return Inspection(
            key=key,
            holder=Holder.parse(ballot.holder_value()) if held else None,
            votes=votes,
            ttl_left=ends_in(ballot) if held else 0.0,
            ballot=ballot,
        )

    def permits_in_use(self, limits: Limits) -> list[Occupancy] | None:
        """Return the occupancy of these limits. Changes and promises nothing.

        Returns:
            The occupancy of each limit; None where no majority answered.
        """
        request = self.nodes.ask(
            INSPECT_PERMITS,
            [self.keys.meta],
            words_of(limits, self.keys),
            done_when=majority_answered,
        )
        return occupancies(limits, request.replies, self.quorum)

    def confirm(self, lease: Lease, connection: Any = None) -> None:
        """Ask the nodes whether the lease is still the holder; raise if not.

        Args:
            lease: The result of ``acquire``.
            connection: A connection to the database that is the node. Then it is asked
                in the transaction there, which keeps others out until it has ended.

        Raises:
            LockLost: A majority does not hold the lock for this lease any more.
            QuorumUnreachable: Too few nodes answered to tell.
            ConfigurationError: The connection cannot be used for this.
        """
        if connection is not None:
            if not self._hold_in(lease, connection):
                raise lease.lost_error()
            return
        ballot = self.inspect(lease.key).ballot
        ours = ballot.votes_for(lease.token, len(lease.keys))
        if ours >= self.quorum:
            return
        if ours + len(self.labels) - ballot.answered >= self.quorum:
            raise unreachable(
                lease.key,
                ballot,
                config=self.guard.config,
                state=f"The lease is valid for {seconds_text(lease.remaining())} more",
            )
        raise lease.lost_error()

    def _hold_in(self, lease: Lease, connection: Any) -> bool:
        """Hold the locks in a transaction; return False if they are not ours."""
        url = self.addresses[0].url
        store = store_of(url) if is_store(url) else None
        hold_in = getattr(store, "hold_in", None)
        if hold_in is None:
            raise ConfigurationError(
                f"Node {self.labels[0]} is no database: `lease.ensure(connection)` "
                "needs a PostgreSQL in redlock_nodes. Use `lease.fence` instead."
            )
        locks = self.keys.locks(lease.key)
        identity = self.guard.view.members[0].identity if self.guard.view else ""
        return bool(hold_in(connection, locks, lease.token, self.keys.meta, identity))

    def check(self) -> NodesReport:
        """Ask every node for a vote on a lock that no other client wants; report.

        A node that must go into quarantine goes now and not with the first task.
        """
        base = new_base()
        key = f"check:{base}"
        while True:
            token = new_token(base)
            request = self.acquire_request(
                key,
                ttl=self.timing.ttl,
                token=token,
                holder_info="",
                done_when=all_answered,
            )
            self.transport.ask(request)
            self._send_release(key, token, since=0.0)
            if not self.guard.recover(request.ballot):
                return NodesReport(request.ballot)

    def carry_out(self, steps: Steps[T]) -> T:
        """Carry steps out in this thread or greenlet, and return the result."""
        return run(steps, self.transport, self.clock)

    # -- life cycle ----------------------------------------------------------------

    def initialize(self) -> None:
        """Start a brand-new deployment without waiting for the restart guard.

        A store gets its table first.

        Raises:
            RedlockError: A node cannot be reached, or holds live locks, which
                shows that the deployment is not new. Nothing was changed.
        """
        self.prepare()
        initialize(self.guard, self.addresses, self.timing.connect_timeout)

    def prepare(self) -> None:
        """Make what a store needs for our keys: the table of a database.

        Raises:
            RedlockError: The store cannot be reached, or denies it.
        """
        for address in self.addresses:
            if not address.is_store:
                continue
            try:
                store = store_of(address.url)
                store.prepare(address.url.reveal(), self.timing.connect_timeout)
            except StoreError as error:
                text = f"Node {address} {error}. Nothing was changed."
                raise RedlockError(text) from None

    def close(self) -> None:
        """Close all connections. The next use opens them again."""
        if self.listener:
            self.listener.close()
        self.transport.close()

    def __repr__(self) -> str:
        return f"<Redlock {', '.join(self.labels)}>"


def _is_passing(failure: LockUnavailable) -> bool:
    """Tell whether the next try may win: split votes, or a fault that has passed."""
    if isinstance(failure, QuorumUnreachable):
        return failure.ballot is not None and failure.ballot.is_passing
    return isinstance(failure, LockContended)


def _check(key: str, wait: float) -> None:
    if not key:
        raise unusable(key, "it is empty")
    check_number("wait", wait)  # nan would wait for ever


def _kept(ttl: float, limit: Limit) -> float:
    """Return the seconds for which nodes keep a permit that was just granted.

    One for a start outlasts the period, which begins with the start. That is at most
    `START_WITHIN` after the ttl of the grant.
    """
    if not limit.period:
        return ttl
    longest = ttl + START_WITHIN + limit.period
    return longest + drift_of(longest)


def run(steps: Steps[T], transport: Transport, clock: Clock) -> T:
    """Carry the steps out in this thread or greenlet, and return the result."""
    result: Any = None
    try:
        while True:
            step = steps.send(result)
            result = None
            if isinstance(step, Ask):
                transport.ask(step.request)
            elif isinstance(step, Sleep):
                clock.sleep(step.seconds)
            elif isinstance(step, Listen):
                step.waiter.listen(step.seconds)
            else:
                result = step.function()
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        steps.close()
