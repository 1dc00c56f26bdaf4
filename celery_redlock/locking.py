"""``with lock(redlock, key) as lease:`` acquire, renew, release, re-entrance.

What one uses without Celery, and what the task is built on. The body never runs
without the lock; while it runs the lock is renewed; when the lock is lost the
holder is told (``on_lost``), and a body that then ends as if nothing had
happened gets ``LockLost`` at the end of the block.

Taking a key that this execution holds already is free: it yields the same lease
and touches no network. An *execution* is one thread or greenlet inside one
block: threads and greenlets that it starts copy its context and are others all
the same.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from typing import TYPE_CHECKING, NamedTuple

from celery_redlock.core.lease import Lease, new_base
from celery_redlock.core.renewal import Watchdog
from celery_redlock.errors import ConfigurationError, RedlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.core.lease import Holder
    from celery_redlock.core.redlock import Redlock

__all__ = ["current_lease", "held_lease", "lock", "watchdog_of"]


class _Hold(NamedTuple):
    """One entry of the stack of locks that an execution holds."""

    redlock: Redlock
    lease: Lease
    execution: tuple[int, int]


_holds: contextvars.ContextVar[tuple[_Hold, ...]] = contextvars.ContextVar(
    "celery_redlock_holds", default=()
)


def watchdog_of(redlock: Redlock) -> Watchdog:
    """Return the watchdog of this service in this process, made on first use."""
    watchdog: Watchdog | None = vars(redlock).get("_watchdog")
    # Of two threads that come here at once one has made it for both.
    return watchdog or vars(redlock).setdefault("_watchdog", Watchdog(redlock))


def _execution() -> tuple[int, int]:
    """Name this thread or greenlet; a forked child's thread has another name."""
    return os.getpid(), threading.get_ident()


def _own_holds() -> Iterator[_Hold]:
    """Yield what this very thread or greenlet holds, innermost first."""
    me = _execution()
    for hold in reversed(_holds.get()):
        if hold.execution == me and hold.lease.is_valid():
            yield hold


def current_lease(key: str | None = None) -> Lease | None:
    """Return the innermost valid lease of this execution, or None outside.

    Args:
        key: Look for the lease of this key instead.
    """
    for hold in _own_holds():
        if key is None or hold.lease.key == key:
            return hold.lease
    return None


def held_lease(redlock: Redlock, key: str) -> Lease | None:
    """Return the valid lease of this key that this execution has, if any."""
    for hold in _own_holds():
        if hold.redlock is redlock and hold.lease.key == key:
            return hold.lease
    return None


@contextlib.contextmanager
def lock(  # noqa: C901, PLR0913  (its end is one; one line each in the docstring)
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
    facts: Holder | None = None,
    on_acquired: Callable[[Lease], None] | None = None,
    on_renewed: Callable[[Lease, float], None] | None = None,
    on_lost: Callable[[Lease], None] | None = None,
    on_cancelled: Callable[[Lease], None] | None = None,
    on_released: Callable[[Lease], None] | None = None,
) -> Iterator[Lease]:
    """Hold the lock while the block runs.

    Args:
        redlock: The service to take it from.
        key: The name to lock.
        ttl: Seconds that nodes keep an unrenewed lock; the service's by default.
        wait: Seconds to keep trying before giving up; 0 tries once.
        renew: Keep it alive while the block runs. Without, the block must end
            within the ttl.
        renew_every: Seconds between renewals, at most a third of the ttl: how soon
            ``on_cancelled`` learns.
        hold_at_least: Seconds after the start for which the lock is kept, even
            when the block ends sooner. At most the service's max_ttl.
        watchdog: What renews it; one for this service and process by default.
        base: First part of the token; see ``Redlock.acquire``.
        facts: What others see of the holder; this process by default.
        on_acquired: Called with the lease before the block runs.
        on_renewed: Called in the watchdog's thread after each renewal, with the
            lease and the seconds by which it was late.
        on_lost: Called in the watchdog's thread when the validity has ended.
        on_cancelled: Called in the watchdog's thread when somebody has asked the
            holder to end. Nothing else happens by itself; the lock is kept.
        on_released: Called with the lease after the nodes were told.

    Raises:
        LockUnavailable: The lock could not be had; the block did not run.
        ConfigurationError: A duration or the key cannot be used; the same.
        LockLost: At the end of a block that did not raise, when the lock was
            lost while it ran.
    """
    held = held_lease(redlock, key)
    if held is not None:
        yield held
        return
    if hold_at_least > redlock.timing.max_ttl:
        raise ConfigurationError(
            f"hold_at_least is {hold_at_least:g} s, above max_ttl "
            f"({redlock.timing.max_ttl:g} s): no lock lasts longer. Lower it."
        )
    watchdog = watchdog or watchdog_of(redlock)
    base = base or new_base()
    outer, me = _holds.get(), _execution()
    lease: Lease | None = None
    refused = False

    def let_go() -> None:
        """Release what there is. Twice is harmless."""
        _holds.set(outer)
        if me[0] != os.getpid():
            return  # a child was forked in the block: the lock is its parent's
        if lease is not None:
            watchdog.forget(lease)
            redlock.release(lease, keep=hold_at_least and hold_at_least - lease.age())
        elif not refused:
            # Interrupted at some point between the grant and the assignment.
            redlock.release_base(key, base)

    try:
        try:
            lease = redlock.acquire(key, ttl, wait, base=base, facts=facts)
        except RedlockError:
            refused = True
            raise
        _holds.set((*outer, _Hold(redlock, lease, me)))
        watchdog.watch(
            lease,
            on_lost=on_lost,
            on_renewed=on_renewed,
            on_cancelled=on_cancelled,
            renew=renew,
            renew_every=renew_every,
        )
        if on_acquired:
            on_acquired(lease)
        yield lease
        if me == _execution() and not lease.is_valid():
            raise lease.lost_error()
    finally:
        # A time limit can land after any call: so there is none before this `try`.
        try:
            let_go()
        except BaseException:
            _insist(let_go)
            raise
        finally:
            if lease is not None and me[0] == os.getpid():
                watchdog.look_after_debts()
                if on_released:
                    on_released(lease)


def _insist(call: Callable[[], None]) -> None:
    """Call it once more, and again if an exception is thrown in again."""
    try:
        call()
    except BaseException:
        call()
        raise
