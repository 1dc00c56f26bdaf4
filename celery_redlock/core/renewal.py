"""One thread per process keeps all leases alive and reports the lost.

::

    watch ──► renew at ttl/3 ──yes──► renew at ttl/3 after that ...
                   │
                   └─no─► again, sooner, until the validity ends ──► on_lost

The end of validity is a local deadline: it is announced when it comes, whatever
a renewal is waiting for, since nothing here blocks on a node. A renewal that a
majority confirms after that is a loss all the same.

For every lease exactly one of two things happens: ``forget`` returns True, or
``on_lost`` is called. Callbacks run on the watchdog's thread and must be quick.

State belongs to the watchdog's thread alone; others leave watches in its inbox. What
decides between ``forget`` and loss is who takes the lease out of one dict, which is
atomic. (A lock would not do: a time limit may strike a task while it holds one.)
"""

from __future__ import annotations

import logging
import math
import os
import threading
from typing import TYPE_CHECKING

from celery_redlock.core.agenda import Agenda, Watch, tell
from celery_redlock.core.inbox import Inbox
from celery_redlock.core.lease import LeaseState
from celery_redlock.logs import about

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.extension import Extension
    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock

__all__ = ["Watchdog"]

log = logging.getLogger("celery_redlock.renewal")

RENEW_AT = 1 / 3  # of the ttl
_RETRY_AT = 1 / 12  # of the ttl, after a renewal that failed
_MOST_AT_ONCE = 256  # renewals on the wire, so that others get in between
_LOOK_AFTER_DEBTS = 0.25  # seconds
_PAUSE_AFTER_ERROR = 0.1


class Watchdog:
    """Renews leases in the background.

    The thread starts with the first lease and can be stopped and started again;
    a forked child starts with an empty watchdog, for the parent renews its own.

    Args:
        redlock: The service that the leases are from.
    """

    def __init__(self, redlock: Redlock) -> None:
        self._redlock = redlock
        self._clock = redlock.clock
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._watched: dict[str, Watch] = {}
        self._inbox = Inbox(self._clock)
        self._is_used = False
        self._agenda = Agenda()
        self._in_flight: list[tuple[Watch, Extension, float]] = []
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def _start_anew_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._reset()

    # -- what holders call -----------------------------------------------------

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
            on_renewed: Called with the lease and the seconds by which its
                renewal was later than a third of the ttl.
            on_cancelled: Called with the lease, once, when a renewal has told that
                somebody wants its holder to end; it is renewed all the same.
            renew: False only announces the end of its validity.
            renew_every: Seconds between renewals, where a third of the ttl is too
                long to wait for ``on_cancelled``.
        """
        self._start_anew_after_fork()
        every = min(lease.ttl * RENEW_AT, renew_every or math.inf)
        renew_at = lease.started_at + every if renew else math.inf
        watch = Watch(lease, on_lost, on_renewed, renew_at, on_cancelled, every)
        self._watched[lease.token] = watch
        self._is_used = True
        self._inbox.put(watch)
        self.start()

    def forget(self, lease: Lease) -> bool:
        """Take the lease out of renewal.

        Returns:
            True if it was under watch; False if its loss has been announced, is
            just being announced, or it never was.
        """
        self._start_anew_after_fork()
        was_watched = self._watched.pop(lease.token, None) is not None
        self._inbox.take_back(lease.token)
        return was_watched

    def renew_now(self, lease: Lease) -> None:
        """Renew the lease in the background without waiting for its time."""
        self._start_anew_after_fork()
        watch = self._watched.get(lease.token)
        if watch and not watch.renewing and watch.renew_at != math.inf:
            watch.renew_at = self._clock.monotonic()
            self._inbox.put(watch)

    def expire(self, key: str) -> Lease | None:
        """End the validity of the lease of this key now, so that its loss is announced.

        For tests: it is what a pause of this process beyond the ttl would do.

        Returns:
            The lease; None if none is under watch.
        """
        self._start_anew_after_fork()
        for watch in list(self._watched.values()):
            if watch.lease.key == key:
                watch.lease.until = self._clock.monotonic()
                self._inbox.put(watch)
                return watch.lease
        return None

    def look_after_debts(self) -> None:
        """See to it, in the background, that absent nodes are told what they must."""
        if self._redlock.transport.owes:
            self._start_anew_after_fork()
            self._inbox.ring()
            self.start()

    def start(self) -> None:
        """Start the thread, if it is not running."""
        self._start_anew_after_fork()
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._stopping = False
                self._thread = threading.Thread(
                    target=self._run, name="redlock-watchdog", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """End the thread. Leases that are watched are renewed no more."""
        thread, self._thread = self._thread, None
        if thread and thread.is_alive() and self._pid == os.getpid():
            self._stopping = True
            self._inbox.ring()
            if thread is not threading.current_thread():
                thread.join()

    # -- the watchdog's thread ----------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            try:
                next_at = self.step()
            except Exception:
                # Others count on this thread: it must not end with one mistake.
                log.exception("The watchdog met an error and goes on.")
                next_at = self._recover()
            woken = self._inbox.sleep(math.inf if next_at is None else next_at)
            if not woken and next_at is None and self._is_done():
                return

    def _is_done(self) -> bool:
        """Retire if nobody has come for a while; the next lease starts another."""
        with self._starting:
            if self._watched or self._is_used or self._inbox.has_rung:
                self._is_used = False
                return False
            self._thread = None
            return True

    def _recover(self) -> float:
        """Take up again what an error left lying. Return when to go on."""
        self._in_flight.clear()
        for watch in list(self._watched.values()):
            watch.renewing = False
            self._agenda.plan(watch)
        return self._clock.monotonic() + _PAUSE_AFTER_ERROR

    def step(self) -> float | None:
        """Do what is due. Return the instant of the next step; None if nothing is.

        For tests and simulations, which call it instead of starting the thread.
        """
        for watch in self._inbox.drain():
            self._agenda.plan(watch)
        self._look_at_due()
        if self._in_flight:
            self._listen()
        if self._redlock.transport.owes:
            self._redlock.transport.drain(self._clock.monotonic())
        return self._next_at()

    def _next_at(self) -> float | None:
        if self._in_flight:
            return self._clock.monotonic()  # the next step listens on
        next_at = self._agenda.next_at
        if self._redlock.transport.owes:
            next_at = min(next_at, self._clock.monotonic() + _LOOK_AFTER_DEBTS)
        return None if next_at == math.inf else next_at

    def _look_at_due(self) -> None:
        now = self._clock.monotonic()
        due: list[Watch] = []
        for watch in self._agenda.due(now):
            if self._watched.get(watch.lease.token) is not watch:
                continue
            if now >= watch.lease.until:
                self._announce_loss(watch)
            elif watch.due_at > now:
                self._agenda.plan(watch)  # renewed or hurried since it was planned
            elif len(self._in_flight) + len(due) < _MOST_AT_ONCE:
                due.append(watch)
            else:
                self._agenda.plan(watch)
                break
        self._send(due)

    def _send(self, due: list[Watch]) -> None:
        if not due:
            return
        sent = []
        for watch in due:
            extension = self._redlock.commands.extension(watch.lease)
            until = extension.started_at + self._redlock.timing.node_timeout
            watch.renewing = True
            self._agenda.plan(watch)
            sent.append((watch, extension, until))
        until = self._agenda.next_at  # no loss is announced late for others' talking
        questions = [extension.question for _, extension, _ in sent]
        if self._redlock.transport.send(*questions, until=until):
            self._in_flight += sent
            return
        for watch, _, _ in sent:
            self._renew_later(watch)

    def _listen(self) -> None:
        until = min(until for _, _, until in self._in_flight)
        until = min(until, self._agenda.next_at)
        questions = [extension.question for _, extension, _ in self._in_flight]
        self._redlock.transport.wait(*questions, until=until)
        now = self._clock.monotonic()
        early = now < until  # all is settled, or nobody is worth waiting for
        under_way, self._in_flight = self._in_flight, []
        for watch, extension, deadline in under_way:
            if self._watched.get(watch.lease.token) is not watch:
                continue
            again = extension.advance(out_of_time=early or now >= deadline)
            if again is not None:
                # In our turn, but no loss is announced late for others' talking.
                turn_by = min(deadline, self._agenda.next_at)
                self._redlock.transport.send(again, until=turn_by)
            if extension.result is None:
                end = now + self._redlock.timing.node_timeout if again else deadline
                self._in_flight.append((watch, extension, end))
            else:
                self._conclude(watch, extension)

    def _conclude(self, watch: Watch, extension: Extension) -> None:
        lease = watch.lease
        watch.renewing = False
        if extension.cancelled_by and not lease.cancelled_by:
            lease.cancelled_by = extension.cancelled_by
            tell(watch.on_cancelled, lease)
        if extension.result:
            in_time = watch.renewed_at + lease.ttl * RENEW_AT
            watch.renewed_at = extension.started_at
            watch.renew_at = watch.renewed_at + watch.renew_every
            self._agenda.plan(watch)
            lateness = max(0.0, extension.started_at - in_time)
            tell(watch.on_renewed, lease, lateness)
        else:
            self._renew_later(watch)
            log.warning(
                "The lock %r (fence %d) could not be renewed: %s. It is valid for "
                "%.1f s more.",
                lease.key,
                lease.fence,
                extension.question.ballot.reasons() or "a majority does not hold it",
                lease.remaining(),
                extra=about("renewal-failed", key=lease.key, fence=lease.fence),
            )

    def _renew_later(self, watch: Watch) -> None:
        watch.renewing = False
        watch.renew_at = self._clock.monotonic() + watch.lease.ttl * _RETRY_AT
        self._agenda.plan(watch)

    def _announce_loss(self, watch: Watch) -> None:
        lease = watch.lease
        if self._watched.pop(lease.token, None) is None:
            return
        lease.state = LeaseState.LOST
        fields = about("lock-lost", key=lease.key, fence=lease.fence)
        log.error("%s", lease.lost_error(), extra=fields)
        tell(watch.on_lost, lease)
