"""Limits of tasks: those that nothing reaches, and rates that restarts may weaken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery_redlock.locks.limits import START_WITHIN, rate_of
from celery_redlock.operations.doctor.deploys import told_by_workers
from celery_redlock.operations.doctor.rule import NOTE, Case, Finding, LockTask, rule

if TYPE_CHECKING:
    from collections.abc import Iterator


# A worker that starts leaves this out: in a deploy each would ask all the others.
@rule(skipped_at_start=True)
def processes(case: Case) -> Iterator[Finding]:
    """Find limits that are higher than the number of tasks that workers run at once."""
    limited = [(it, most) for it in case.lock_tasks if (most := _limit_of(it)) > 1]
    stats = told_by_workers(case.app, "stats") if limited else {}
    at_once = sum(map(_tasks_at_once, stats.values()))
    for it, most in limited:
        if stats and most > at_once:
            yield Finding(
                "limit",
                NOTE,
                f"has a limit of {most}, and the running workers that answer run "
                f"{at_once} tasks at once: the limit has no effect on them",
                "Lower it, unless more workers start at times, or other code takes the "
                "same key.",
            ).of("Task", it.task.name)


def _limit_of(it: LockTask) -> int:
    """Return the limit of a task as it was given; 0 for none."""
    keys = it.options.keys
    return max(keys.values()) if isinstance(keys, Mapping) else it.options.limit or 0


def _tasks_at_once(stats: Mapping[str, Any]) -> int:
    """Return how many tasks a worker runs at once, at most."""
    most: int = (stats.get("autoscaler") or {}).get("max", 0)
    pool = stats.get("pool")
    now = pool.get("max-concurrency", 0) if isinstance(pool, Mapping) else 0
    return max(most, now)


@rule("Task")
def rates(it: LockTask, case: Case) -> Iterator[Finding]:
    """Find rates that count for longer than a node that restarts stays out of the vote.

    A node that has forgotten a start votes again after its quarantine.
    """
    if it.options.rate is None or not case.redlock.guard.enabled:
        return
    timing, (_, period) = case.redlock.timing, rate_of("rate", it.options.rate)
    kept = it.ttl + START_WITHIN + period
    if kept > timing.quarantine:
        yield Finding(
            "rate",
            NOTE,
            f"counts starts for up to {kept:.0f} s (its rate), and a node that "
            f"restarts without its memory votes again after {timing.quarantine:.0f} s "
            "(redlock_max_ttl). If so many nodes restart within the period of a start "
            "that no majority remembers it, one more start is possible",
            f"Nothing is to be done if nodes rarely restart. Otherwise raise "
            f"redlock_max_ttl to {_rounded_up(kept)} s with `celery -A proj redlock "
            "reconfigure`, or shorten the period: 60/h is 1/m.",
        )


def _rounded_up(seconds: float) -> int:
    """Return whole seconds, rounded up to tens."""
    return -int(-seconds // 10) * 10
