"""``with lock(redlock, key) as lease:`` acquire, renew, release, re-entrance.

The lock for code without Celery, and the basis of the task. The body never runs without
the lock. While the body runs, the lock is renewed. If the lock is lost, ``on_lost`` is
called, and a body that then ends without an exception gets ``LockLost`` at the end of
the block.

To take a key that this execution holds already is free: it yields the same lease and
touches no network. An *execution* is one thread or greenlet, or one asyncio task in it.
What it starts is another execution, also where it copies the context: a thread, a
greenlet, an asyncio task, a forked child. They are refused, or wait, as any other
client. (To wait blocks the event loop, and with it a holder in the same loop. So call
``lock`` with ``wait`` in a thread: ``asyncio.to_thread``.)
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

from celery_redlock.core.lease import Lease, new_base
from celery_redlock.core.renewal.watchdog import Watchdog
from celery_redlock.errors import ConfigurationError, RedlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.core.lease import Holder
    from celery_redlock.core.redlock import Redlock

__all__ = ["Hold", "current_lease", "held_by", "held_lease", "lock", "watchdog_of"]


_Execution = tuple[int, int, object]  # process, thread or greenlet, asyncio task


class _Entered(threading.local):
    """The locks that this thread or greenlet holds, outermost first.

    This is no context variable on purpose: threads and asyncio tasks copy those.
    """

    def __init__(self) -> None:
        self.holds: list[Hold] = []


_entered = _Entered()


def watchdog_of(redlock: Redlock) -> Watchdog:
    """Return the watchdog of this service in this process, made on first use."""
    watchdog: Watchdog | None = vars(redlock).get("_watchdog")
    # Of two threads that come here at once, one makes it for both.
    return watchdog or vars(redlock).setdefault("_watchdog", Watchdog(redlock))


def _execution() -> _Execution:
    """Identify what runs now. No copy of a context has the identity of another one."""
    return os.getpid(), threading.get_ident(), _asyncio_task()


def _asyncio_task() -> object | None:
    """Return the asyncio task that runs in this thread, or None."""
    asyncio = sys.modules.get("asyncio")  # its import takes a while; most never do
    if asyncio is None:
        return None
    try:
        task: object | None = asyncio.current_task()
    except (AttributeError, RuntimeError):  # half imported, or no loop runs here
        return None
    return task


def _leases_of(*executions: _Execution) -> Iterator[tuple[Redlock, Lease]]:
    """Yield the valid leases of these executions of this thread, innermost first."""
    for hold in reversed(_entered.holds):
        lease = hold.own
        if lease is not None and hold.execution in executions and lease.is_valid():
            yield hold.redlock, lease


def current_lease(key: str | None = None) -> Lease | None:
    """Return the innermost valid lease under which this code runs, or None.

    It is the lease of this execution, or else of a block around the event loop that
    runs this asyncio task.

    Args:
        key: Return the lease of this key instead.
    """
    process, thread, task = _execution()
    for _, lease in _leases_of((process, thread, task), (process, thread, None)):
        if key is None or lease.key == key:
            return lease
    return None


def held_lease(redlock: Redlock, key: str) -> Lease | None:
    """Return the valid lease of this key that this execution holds, or None."""
    for service, lease in _leases_of(_execution()):
        if service is redlock and lease.key == key:
            return lease
    return None


class Hold:
    """One lock of one execution: acquired, renewed, released. Subclasses have hooks.

    `held_by` holds it for a block, and `lock` makes one for a block. After
    ``acquire``, also one that raised, ``release`` must be called.

    Args:
        redlock: The lock service.
        key: The name of the lock.
        ttl, renew, renew_every, hold_at_least, watchdog, base: See `lock`.

    Attributes:
        redlock: The lock service.
        key: The name of the lock.
        own: The lease, from the grant to the end of ``release``. It stays None where
            this execution held the lock already.
        execution: The process, the thread or greenlet, and the asyncio task, if any,
            that acquired it.

    Raises:
        ConfigurationError: ``hold_at_least`` is longer than any lock lasts.
    """

    own: Lease | None = None
    execution: _Execution = (0, 0, None)
    _is_used = False  # since the last release
    _may_be_granted = False  # by nodes, though ``own`` is not yet set

    def __init__(  # noqa: PLR0913  (keyword-only, one line each in the docstring)
        self,
        redlock: Redlock,
        key: str,
        *,
        ttl: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        hold_at_least: float = 0.0,
        watchdog: Watchdog | None = None,
        base: str | None = None,
    ) -> None:
        if hold_at_least > redlock.timing.max_ttl:
            raise ConfigurationError(
                f"hold_at_least is {hold_at_least:g} s, above max_ttl "
                f"({redlock.timing.max_ttl:g} s): no lock lasts longer. Lower it."
            )
        self.redlock = redlock
        self.key = key
        self._ttl = ttl
        self._renew = renew
        self._renew_every = renew_every
        self._hold_at_least = hold_at_least
        self._watchdog = watchdog or watchdog_of(redlock)
        self._base = base or new_base()
        self._holds = _entered.holds

    def acquire(self, wait: float = 0.0) -> Lease:
        """Acquire the lock and keep it alive; raises as ``Redlock.acquire`` does."""
        holds = _entered.holds
        held = held_lease(self.redlock, self.key) if holds else None
        if held is not None:
            return held
        self._holds, self.execution = holds, _execution()
        self._is_used = self._may_be_granted = True
        try:
            lease = self.redlock.acquire(
                self.key, self._ttl, wait, base=self._base, holder=self.holder()
            )
        except RedlockError:
            self._may_be_granted = False
            raise
        self.own = lease
        holds.append(self)
        self._watchdog.watch(
            lease,
            on_lost=self.on_lost,
            on_renewed=self.on_renewed,
            on_cancelled=self.on_cancelled,
            renew=self._renew,
            renew_every=self._renew_every,
        )
        self.on_acquired(lease)
        return lease

    def check(self) -> None:
        """Raise unless the lock was held until now. Call it at the end of the block.

        Raises:
            LockLost: The validity of the lease has ended.
        """
        lease = self.own
        if lease is not None and not lease.is_valid() and not lease.is_inherited():
            raise lease.lost_error()

    def release(self) -> None:
        """Release the lock, if there is one. Twice is harmless."""
        if not self._is_used:
            return
        lease, is_parent = self.own, self.execution[0] == os.getpid()
        try:
            self._release()
        except BaseException:
            _finish(self._release)
            raise
        finally:
            self.own, self._is_used = None, False
            if lease is not None and is_parent:
                self._watchdog.resend_releases()
                self.on_released(lease)

    def _release(self) -> None:
        if self in self._holds:
            self._holds.remove(self)
        if self.execution[0] != os.getpid():
            return  # this is a child that was forked in the block: its parent holds it
        if self.own is not None:
            self._watchdog.forget(self.own)
            keep = self._hold_at_least and self._hold_at_least - self.own.age()
            self.redlock.release(self.own, keep=keep)
        elif self._may_be_granted:
            # Interrupted between the grant and the assignment: nodes may hold it.
            self.redlock.release_base(self.key, self._base)

    # -- hooks ---------------------------------------------------------------------

    def holder(self) -> Holder | None:
        """Return what other clients see of the holder; None: this process."""

    def on_acquired(self, lease: Lease) -> None:
        """Note that the lock was acquired."""

    def on_renewed(self, lease: Lease, lateness: float) -> None:
        """Note a renewal, in the watchdog's thread; it was so many seconds late."""

    def on_lost(self, lease: Lease) -> None:
        """Note, in the watchdog's thread, that the validity has ended."""

    def on_cancelled(self, lease: Lease) -> None:
        """Note, in the watchdog's thread, that a newcomer asked the holder to end."""

    def on_released(self, lease: Lease) -> None:
        """Note that the lock was released."""


@contextlib.contextmanager
def lock(  # noqa: PLR0913  (keyword-only, one line each in the docstring)
    redlock: Redlock,
    key: str,
    *,
    ttl: float | None = None,
    wait: float = 0.0,
    renew: bool = True,
    renew_every: float | None = None,
    hold_at_least: float = 0.0,
    watchdog: Watchdog | None = None,
    base: str | None = None,
    holder: Holder | None = None,
    on_acquired: Callable[[Lease], None] | None = None,
    on_renewed: Callable[[Lease, float], None] | None = None,
    on_lost: Callable[[Lease], None] | None = None,
    on_cancelled: Callable[[Lease], None] | None = None,
    on_released: Callable[[Lease], None] | None = None,
) -> Iterator[Lease]:
    """Hold the lock while the block runs.

    Args:
        redlock: The lock service.
        key: The name of the lock.
        ttl: Seconds that nodes keep an unrenewed lock; the service's by default.
        wait: Seconds to wait for the lock before giving up; 0 tries once.
        renew: Renew the lock while the block runs. Otherwise the block must end
            within the ttl.
        renew_every: Seconds between renewals, at most a third of the ttl. It limits
            the delay of ``on_cancelled``.
        hold_at_least: Seconds after the start for which the lock is kept, even if the
            block ends sooner. At most the service's max_ttl.
        watchdog: Renews the lease; one for this service and process by default.
        base: First part of the token; see ``Redlock.acquire``.
        holder: What other clients see of the holder; this process by default.
        on_acquired: Called with the lease before the block runs.
        on_renewed: Called in the watchdog's thread after each renewal, with the lease
            and the seconds by which the renewal was late.
        on_lost: Called in the watchdog's thread when the validity has ended.
        on_cancelled: Called in the watchdog's thread when a newcomer asked the holder
            to end. The lock is kept; nothing else happens.
        on_released: Called with the lease after the release.

    Raises:
        LockUnavailable: The lock was not granted. The block did not run.
        ConfigurationError: A duration or the key cannot be used. The block did not
            run.
        LockLost: At the end of a block that did not raise, if the lock was lost while
            it ran.
    """
    hold = Hold(
        redlock,
        key,
        ttl=ttl,
        renew=renew,
        renew_every=renew_every,
        hold_at_least=hold_at_least,
        watchdog=watchdog,
        base=base,
    )
    hooks = {
        "holder": (lambda: holder) if holder else None,
        "on_acquired": on_acquired,
        "on_renewed": on_renewed,
        "on_lost": on_lost,
        "on_cancelled": on_cancelled,
        "on_released": on_released,
    }
    vars(hold).update({name: hook for name, hook in hooks.items() if hook})
    yield from _block(hold, wait)


def _block(hold: Hold, wait: float = 0.0) -> Iterator[Lease]:
    """Acquire for the time of a block; raise at its end if the lock was lost."""
    try:
        yield hold.acquire(wait)
        hold.check()
    finally:
        # A time limit can interrupt after any call, so no call comes before this `try`.
        try:
            hold.release()
        except BaseException:
            hold.release()
            raise


held_by = contextlib.contextmanager(_block)


def _finish(call: Callable[[], None]) -> None:
    """Make a call that was interrupted once more, and again if that is interrupted."""
    try:
        call()
    except BaseException:
        call()
        raise
