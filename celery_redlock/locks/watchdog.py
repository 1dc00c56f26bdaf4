"""One thread per process that keeps all leases alive and reports lost ones.

::

    watch ──► renew at ttl/3 ──yes──► renew at ttl/3 after that ...
                   │
                   └─no─► again, sooner, until the validity ends ──► on_lost

A lock that an operator released is lost at the next renewal, which learns of it.

The end of validity is a local deadline. It is announced when it comes, even during a
renewal, because nothing here blocks on a node. There is one exception. A lease that is
watched while a renewal waits to be sent or for replies, and ends before these have had
their time, is announced then. If a majority confirms a renewal after the
deadline, the lease is lost all the same.

For every lease exactly one of two things happens, while the thread is not stopped:
``forget`` returns True, or ``on_lost`` is called. Callbacks run in the watchdog's
thread and must be quick.

Only the watchdog's thread uses its state; others leave watches in its wake-up queue.
``forget`` and a loss both take the lease out of one dict, which is atomic, and the
first of them decides. (A lock would not do: a time limit may interrupt a task while it
holds one.)
"""

from __future__ import annotations

import logging
import math
import os
import sys
from typing import TYPE_CHECKING

from celery_redlock.basics.callbacks import call_safely, log_safely
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.log_limit import LogLimit
from celery_redlock.basics.process import Background, OfOneProcess, ThreadRun
from celery_redlock.basics.timing import seconds_text
from celery_redlock.locks.extension import is_usual
from celery_redlock.locks.lease import LeaseState
from celery_redlock.locks.renewal_schedule import RenewalSchedule, WakeupQueue, Watch
from celery_redlock.members.view import CLOSED, differences, other_views
from celery_redlock.scripts.keys import MOST, MOST_BYTES, keys_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.locks.extension import Extension
    from celery_redlock.locks.lease import Holder, Lease
    from celery_redlock.locks.redlock import Redlock


log = logging.getLogger(__name__)

RENEW_AT = 1 / 3  # of the ttl
_RETRY_AT = 1 / 12  # of the ttl, after a renewal that failed
_ROUNDS = 3  # node timeouts, of a renewal together, one alone, and its restore
_MOST_AT_ONCE = 1000  # leases, 2 ms of a node: other requests get in between
_RESEND_EVERY = 0.25  # seconds
_PAUSE_AFTER_ERROR = 0.1
_ENDS_WITHIN = 5.0  # seconds


class Watchdog(OfOneProcess):
    """Renews leases in the background.

    The thread starts with the first lease, and can be stopped and started again. A
    forked child starts with an empty watchdog, because the parent renews its own
    leases.

    Args:
        redlock: The lock service of the leases.

    Attributes:
        announced: The lease whose loss is just being announced. For tests of users.
    """

    def __init__(self, redlock: Redlock) -> None:
        super().__init__()
        self._redlock = redlock
        self._clock = redlock.clock
        self.forget_parent()

    def forget_parent(self) -> None:
        """Start without leases."""
        self._watched: dict[str, Watch] = {}
        self._wakeups = WakeupQueue(self._clock)
        self._is_used = False
        self._looks_soon = False  # whether the thread is about to resend releases
        self._schedule = RenewalSchedule()
        self._in_flight: list[tuple[list[Watch], Extension]] = []
        self.announced: Lease | None = None
        self._failure_limit = LogLimit(self._clock)
        self._background = Background("redlock-watchdog", self._run, self._clock)

    # -- for holders ---------------------------------------------------------------

    def watch(  # noqa: PLR0913  (keyword-only, one line each in the docstring)
        self,
        lease: Lease,
        *,
        on_lost: Callable[[Lease], None] | None = None,
        on_renewed: Callable[[Lease, float], None] | None = None,
        on_cancelled: Callable[[Lease], None] | None = None,
        renew: bool = True,
        renew_every: float | None = None,
    ) -> None:
        """Keep the lease alive until ``forget``.

        Args:
            lease: A lease that is held.
            on_lost: Called with the lease when its validity has ended.
            on_renewed: Called with the lease and the seconds by which its renewal was
                later than a third of the ttl.
            on_cancelled: Called with the lease, once, when a renewal has learnt that
                a newcomer asked the holder to end. The renewals go on.
            renew: False only announces the end of the validity.
            renew_every: Seconds between renewals, where a third of the ttl is too
                long to wait for ``on_cancelled``.
        """
        if self.pid != os.getpid():
            self.notice_fork()
        every = min(lease.ttl * RENEW_AT, renew_every or math.inf)
        renew_at = lease.started_at + every if renew else math.inf
        watch = Watch(lease, renew_at, every, on_lost, on_renewed, on_cancelled)
        self._watched[lease.token] = watch
        self._is_used = True
        self._wakeups.put(watch)
        if not self.start() and not sys.is_finalizing():
            self._log_failure(lease, "no further thread can start")

    def forget(self, lease: Lease) -> bool:
        """Take the lease out of renewal. It is not released.

        Returns:
            True if it was under watch. False if its loss was or is just being
            announced, or if it never was under watch.
        """
        if self.pid != os.getpid():
            self.notice_fork()
        was_watched = self._watched.pop(lease.token, None) is not None
        self._wakeups.discard(lease.token)
        return was_watched

    def watches(self, holder: Holder | None) -> bool:
        """Tell whether this holder has a lease that is under watch here."""
        return holder is not None and holder.token in self._watched

    @property
    def has_leases(self) -> bool:
        """Whether leases are under watch."""
        return bool(self._watched)

    def renew_now(self, lease: Lease) -> None:
        """Renew the lease in the background without waiting for its time."""
        self.notice_fork()
        watch = self._watched.get(lease.token)
        if watch and not watch.renewing and watch.renew_at != math.inf:
            watch.renew_at = self._clock.monotonic()
            self._wakeups.put(watch)

    def renew_key(self, key: str) -> bool:
        """Renew the lease of these locks now, in the background. For tests.

        Args:
            key: The name of a lock; of a limit, that of the permit.

        Returns:
            Whether a lease of these locks is under watch.
        """
        self.notice_fork()
        watches = list(self._watched.values())
        names = {*keys_of(key)}
        leases = [watch.lease for watch in watches if names <= {*watch.lease.keys}]
        for lease in leases:
            self.renew_now(lease)
        return bool(leases)

    def expire(self, what: str | Lease) -> Lease | None:
        """End the validity of a lease now; its loss is announced.

        For tests: a pause of this process beyond the ttl has the same effect.

        Args:
            what: The lease, or keys that it has, or has permits of.

        Returns:
            The lease; None if none is under watch.
        """
        self.notice_fork()
        for watch in list(self._watched.values()):
            lease = watch.lease
            if lease is what or (isinstance(what, str) and lease.covers(what)):
                lease.until = self._clock.monotonic()
                self._wakeups.put(watch)
                return lease
        return None

    def resend_releases(self) -> None:
        """Have the thread resend releases that did not arrive, or were refused.

        A reply that is not there yet may be a refusal. The thread reads it within a few
        seconds, unless another call does before.
        """
        transport = self._redlock.transport
        if transport.has_pending or transport.has_unanswered:
            self.notice_fork()
            self._is_used = True
            if transport.has_pending and not self._looks_soon:
                self._wakeups.wake()
            self.start()

    def start(self) -> bool:
        """Start the thread, unless it runs. Return False if there can be none."""
        if self.pid != os.getpid():
            self.notice_fork()
        return self._background.has_begun or self._background.ensure()

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        return self._background.is_running

    def stop(self) -> None:
        """End the thread. Leases under watch are renewed no more."""
        if self.pid == os.getpid():
            self._background.stop(self._wakeups.wake, _ENDS_WITHIN)

    # -- the watchdog's thread -----------------------------------------------------

    def _run(self, run: ThreadRun) -> None:
        self._wakeups.begin()
        while not self._background.is_over(run):
            try:
                next_at = self.step()
            except (Exception, SystemExit):  # noqa: BLE001  (it is logged)
                # All leases depend on this thread: it must not end with one mistake,
                # nor with the `sys.exit` of a callback, which ends no process here.
                text = "The watchdog had an error and continues."
                log_safely(log, logging.ERROR, text, exc_info=True)
                next_at = self._recover()
            woken = self._wakeups.sleep(math.inf if next_at is None else next_at)
            if woken or next_at is not None:
                continue
            if self._has_work():
                self._is_used = False  # it stays for one more sleep
            elif self._background.ends(run, self._has_work):
                return

    def _has_work(self) -> bool:
        """Tell whether there are leases, or a reply is missing, or there was a lease.

        A reply that is missing may be the refusal of a release.
        """
        transport = self._redlock.transport
        is_used = self._watched or self._is_used or self._wakeups.was_woken
        return bool(is_used or transport.has_unanswered or transport.has_pending)

    def _recover(self) -> float:
        """Plan all watches anew after an error. Return when to go on."""
        self._in_flight.clear()
        for watch in list(self._watched.values()):
            watch.renewing = False
            self._schedule.plan(watch)
        return self._clock.monotonic() + _PAUSE_AFTER_ERROR

    def step(self) -> float | None:
        """Renew the leases that are due. Return the instant of the next step, or None.

        For tests and simulations, which call it instead of starting the thread.
        """
        for watch in self._wakeups.drain():
            self._schedule.plan(watch)
        self._look_at_due()
        if self._in_flight:
            self._listen()
        transport = self._redlock.transport
        if transport.has_pending or transport.has_unanswered:
            transport.drain()
        return self._next_at()

    def _next_at(self) -> float | None:
        if self._in_flight:
            return self._clock.monotonic()  # the next step listens on
        next_at = self._schedule.next_at
        self._looks_soon = self._redlock.transport.has_pending
        if self._looks_soon:
            next_at = min(next_at, self._clock.monotonic() + _RESEND_EVERY)
        return None if next_at == math.inf else next_at

    def _look_at_due(self) -> None:
        now = self._clock.monotonic()
        due: list[Watch] = []
        room = _MOST_AT_ONCE - sum(len(watches) for watches, _ in self._in_flight)
        for watch in self._schedule.due(now):
            if self._watched.get(watch.lease.token) is not watch:
                continue
            if now >= watch.lease.until:
                self._announce_loss(watch)
            elif watch.due_at > now:
                self._schedule.plan(watch)  # its time changed since it was planned
            elif room > len(due):
                due.append(watch)
            else:
                self._schedule.plan(watch)
                for each in list(self._watched.values()):
                    if now >= each.lease.until:
                        self._announce_loss(each)
                break
        self._begin(due, now + _ROUNDS * self._redlock.timing.node_timeout)

    def _begin(self, due: list[Watch], end: float) -> None:
        """Renew the leases that are due: the usual ones by one request.

        Args:
            due: The leases.
            end: Instant. A lease that ends before has no time for more than one try.
        """
        usual: list[Watch] = []
        groups = []
        for watch in due:
            watch.renewing = True
            self._schedule.plan(watch)
            if is_usual(watch.lease) and watch.lease.until > end:
                usual.append(watch)
            else:
                groups.append([watch])
        self._send([*groups, *_grouped(usual)])

    def _send(self, groups: list[list[Watch]]) -> None:
        """Send one request for each of these groups of leases."""
        if not groups:
            return
        sent = []
        for watches in groups:
            leases = [watch.lease for watch in watches]
            sent.append((watches, self._redlock.extension(leases)))
        requests = [extension.request for _, extension in sent]
        self._redlock.transport.send(*requests)
        self._in_flight += sent

    def _give_up_at(self) -> float:
        """Return until when to wait for nodes, or for a busy transport.

        No loss is announced late.
        """
        next_at = self._schedule.next_at
        if next_at > self._clock.monotonic():
            return next_at
        ends = [watch.lease.until for watch in list(self._watched.values())]
        return min(ends, default=next_at)

    def _listen(self) -> None:
        transport, until = self._redlock.transport, self._give_up_at()
        requests = [extension.request for _, extension in self._in_flight]
        was_read = transport.wait(*requests, until=until)
        end = min([until, *[request.deadline for request in requests]])
        # All are done, or no node is worth waiting for.
        early = was_read and self._clock.monotonic() < end
        under_way, self._in_flight = self._in_flight, []
        for begun, extension in under_way:
            watches = [w for w in begun if self._watched.get(w.lease.token) is w]
            if not watches:
                continue
            # Replies that were not read at the deadline may be there all the same.
            out_of_time = early or (was_read and extension.request.deadline <= end)
            restore = extension.advance(out_of_time=out_of_time)
            if restore is not None:
                transport.send(restore)
            if extension.result is None:
                self._in_flight.append((watches, extension))
            elif extension.leases[1:] and not extension.result:
                self._send([[watch] for watch in watches])
            else:
                for watch in watches:
                    self._conclude(watch, extension)

    def _conclude(self, watch: Watch, extension: Extension) -> None:
        lease = watch.lease
        if self._watched.get(lease.token) is not watch:
            return  # a callback of another lease has ended it
        watch.renewing = False
        if extension.cancelled_by and not lease.cancelled_by:
            lease.cancelled_by = extension.cancelled_by
            call_safely(watch.on_cancelled, lease)
        if extension.result and lease.is_valid():
            in_time = watch.renewed_at + lease.ttl * RENEW_AT
            watch.renewed_at = extension.started_at
            watch.renew_at = watch.renewed_at + watch.renew_every
            self._schedule.plan(watch)
            lateness = max(0.0, extension.started_at - in_time)
            call_safely(watch.on_renewed, lease, lateness)
        elif lease.released_by:
            self._announce_loss(watch)
        else:
            watch.renew_at = self._clock.monotonic() + lease.ttl * _RETRY_AT
            self._schedule.plan(watch)
            ballot = extension.request.ballot
            # Any other view may be one that this client has by now.
            closed = [it for it in other_views(ballot) if it.startswith(CLOSED)]
            advice = differences(closed, self._redlock.guard.config)
            self._log_failure(lease, ballot.reasons(), advice)

    def _log_failure(self, lease: Lease, reasons: str, advice: str = "") -> None:
        """Log a renewal that failed: one line a minute for all leases."""
        others = self._failure_limit.take()
        log.log(
            logging.DEBUG if others is None else logging.WARNING,
            "The lock %s (fence %d) could not be renewed: %s. It is valid for %s "
            "more.%s%s",
            shown(lease.key),
            lease.fence,
            reasons or "too few votes for it",
            seconds_text(lease.remaining()),
            f" {others} other renewals failed since the last report." * bool(others),
            f" {advice}." * bool(advice),
            extra=log_fields("renewal-failed", key=lease.key, fence=lease.fence),
        )

    def _announce_loss(self, watch: Watch) -> None:
        lease = watch.lease
        if self._watched.pop(lease.token, None) is None:
            return
        self.announced = lease
        lease.state = LeaseState.LOST
        key, fence, by = lease.key, lease.fence, lease.released_by
        fields = log_fields("lock-lost", key=key, fence=fence)
        if by:
            fields = log_fields("force-released", key=key, fence=fence, by=by)
        # No error: who holds the lock raises one, which is reported.
        log_safely(log, logging.WARNING, "%s", lease.lost_error(), extra=fields)
        call_safely(watch.on_lost, lease)
        self.announced = None


def _grouped(watches: list[Watch]) -> Iterator[list[Watch]]:
    """Yield groups with no more keys, and no longer ones, than one lease may have."""
    group: list[Watch] = []
    size = 0
    for watch in watches:
        its_size = len(watch.lease.key.encode())
        if group and (len(group) == MOST or size + its_size > MOST_BYTES):
            yield group
            group, size = [], 0
        group.append(watch)
        size += its_size
    if group:
        yield group
