"""Settings that weaken the lock, for all tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.operations.doctor.finding import WARNING, Finding
from celery_redlock.operations.doctor.rule import rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.operations.doctor.case import Case

__all__ = ["guard", "timing"]

_TRIES_PER_TTL = 12  # a failed renewal is repeated after a 12th of the ttl


@rule(offline=True, logged_at_start=True)
def guard(case: Case) -> Iterator[Finding]:
    """Find that the restart guard is off."""
    if not case.redlock.guard.enabled:
        yield Finding(
            "guard-off",
            WARNING,
            "The restart guard is off: a node that restarts empty votes at once. A "
            "second client can get a lock that is held, and fences can repeat.",
            "Set redlock_restart_guard = True.",
        )


@rule(offline=True)
def timing(case: Case) -> Iterator[Finding]:
    """Find a ttl that is too short to repeat a failed renewal in time."""
    times = case.redlock.timing
    least = round(2 * _TRIES_PER_TTL * times.node_timeout, 6)
    if times.ttl < least:
        yield Finding(
            "ttl",
            WARNING,
            f"redlock_ttl is {times.ttl:g} s, so a failed renewal is repeated after "
            f"{times.ttl / _TRIES_PER_TTL:.2g} s; a node may take "
            f"{times.node_timeout:g} s to answer.",
            f"Raise it to at least {least:g} s, or lower redlock_node_timeout.",
        )
