"""Take the lock of a task with its options, and send the signals of its life."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.lease import Holder
from celery_redlock.locking import lock
from celery_redlock.signals import (
    lock_acquired,
    lock_cancelled,
    lock_lost,
    lock_released,
    lock_renewed,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from celery_redlock.core.lease import Lease
    from celery_redlock.options import ResolvedOptions
    from celery_redlock.runtime import Runtime

__all__ = ["task_lock"]


def task_lock(  # noqa: PLR0913  (keyword-only, one line each in the docstring)
    task: Any,
    key: str,
    *,
    task_id: str,
    runtime: Runtime,
    options: ResolvedOptions,
    wait: float = 0.0,
    base: str | None = None,
    since: float | None = None,
    published: int = 0,
    on_lost: Callable[[Lease], None] | None = None,
    on_cancelled: Callable[[Lease], None] | None = None,
) -> AbstractContextManager[Lease]:
    """Return ``locking.lock`` for a task.

    Args:
        task: The sender of the signals.
        key: The name to lock.
        task_id: What executes it, ``""`` outside of a task.
        runtime: Of the task's app.
        options: The task's lock options.
        wait: Seconds to keep trying.
        base: First part of the token.
        since: Instant since when it is wanted; now by default.
        published: Microseconds since 1970 when the call was published, if known.
        on_lost: Called in the watchdog's thread instead of sending ``lock_lost``.
        on_cancelled: The same, instead of ``lock_cancelled``.
    """
    about: dict[str, Any] = {"sender": task, "task_id": task_id}
    announce = functools.partial(runtime.announcer.announce, **about)
    clock = runtime.redlock.clock
    began_at = clock.monotonic() if since is None else since
    return lock(
        runtime.redlock,
        key,
        ttl=options.ttl,
        wait=wait,
        renew=options.renew,
        renew_every=options.renew_every,
        hold_at_least=options.hold_at_least,
        base=base,
        facts=Holder.here(
            task=task.name,
            task_id=task_id,
            started=SYSTEM_CLOCK.wall_us() / 1e6,
            published=published,
        ),
        on_acquired=lambda lease: lock_acquired.send(
            lease=lease, waited=clock.monotonic() - began_at, **about
        ),
        on_renewed=lambda lease, lateness: announce(
            signal=lock_renewed, lease=lease, lateness=lateness
        ),
        on_lost=on_lost
        or (lambda lease: announce(signal=lock_lost, lease=lease, decision=None)),
        on_cancelled=on_cancelled
        or (
            lambda lease: announce(
                signal=lock_cancelled, lease=lease, cancelled_by=lease.cancelled_by
            )
        ),
        on_released=lambda lease: lock_released.send(lease=lease, **about),
    )
