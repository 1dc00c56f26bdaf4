"""Which slots of an entry are due, told the same way by every beat.

Celery asks a schedule "is it due, and for how long should I sleep". Here the
question is *when exactly*, because the answer names the slot: two beats that
count from the same instant must come to the same microsecond. So the schedule is
asked with a clock of its own that stands still.

============  ================================================================
schedule      what is due
============  ================================================================
interval      one slot at most, since it counts from the last run: that after the
              last run, or, where the catch-up window begins later, the first
              that is within it in the same step
crontab,      instants of their own: each one since the last run that is within
solar, ...    the catch-up window, oldest first
============  ================================================================

Instants are whole microseconds since 1970.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from celery import schedules
from celery.utils.time import maybe_make_aware

if TYPE_CHECKING:
    from celery.schedules import BaseSchedule

__all__ = [
    "as_datetime",
    "as_us",
    "copy_of",
    "never_ran",
    "next_due",
    "slots_due",
    "window_from",
]

_US = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Schedulers say "it never ran, send it" by a last run that is decades ago.
_NEVER = timedelta(days=3650) // _US
_QUARTER = timedelta(minutes=15) // _US  # clocks are changed at such instants
_LONGEST_SECOND_PASS = 8  # of these

_T = TypeVar("_T")


def as_us(instant: datetime | None) -> int:
    """Return an instant in microseconds; naive ones are UTC, and None is 1970."""
    return 0 if instant is None else (maybe_make_aware(instant) - _EPOCH) // _US


def as_datetime(instant_us: int, schedule: BaseSchedule) -> datetime:
    """Return an instant as the schedule would read it from the clock."""
    return (_EPOCH + instant_us * _US).astimezone(getattr(schedule, "tz", None))


def copy_of(original: _T, **changes: Any) -> _T:
    """Return a shallow copy with other attributes, whatever its constructor takes."""
    copy: _T = object.__new__(type(original))
    vars(copy).update(vars(original), **changes)
    return copy


def next_due(schedule: BaseSchedule, since: int) -> int | None:
    """Return the first instant after ``since`` at which the schedule is due.

    A schedule that names one instant for ever, as a clocked task does, returns that
    one also when it has passed; None if there is none any more.
    """
    due = _next_due(schedule, since)
    # In the hour that a clock passes twice, crontab names instants of the first
    # pass. It never has any in the second one, so look from the end of that.
    ahead, tries = since, 0
    while due is not None and due <= since and tries < _LONGEST_SECOND_PASS:
        ahead = (ahead // _QUARTER + 1) * _QUARTER
        again = _next_due(schedule, ahead - 1)
        due = again if again is None or again > since else due
        tries += 1
    return due


def _next_due(schedule: BaseSchedule, since: int) -> int | None:
    then = as_datetime(since, schedule)
    still = copy_of(schedule, nowfun=lambda: then)
    left = still.remaining_estimate(then)
    return None if left is None else since + left // _US


def never_ran(since: int, now: int) -> bool:
    """Tell whether a last run is a way of saying that there was none."""
    return now - since > _NEVER


def window_from(schedule: BaseSchedule, since: int, earliest: int) -> int:
    """Return from where to count if slots before ``earliest`` are not sent any more.

    An interval keeps its step: every hour at ten past stays at ten past.
    """
    if since >= earliest or never_ran(since, earliest):
        return since
    first = next_due(schedule, since)
    if first is None or first >= earliest:
        return since
    if isinstance(schedule, schedules.schedule) and first > since:
        step = first - since
        return since - (since - earliest) // step * step - step
    return earliest - 1  # a slot at that very instant is still sent


def slots_due(schedule: BaseSchedule, since: int, now: int) -> list[int]:
    """Return the due times after ``since`` and up to ``now``, oldest first."""
    due = next_due(schedule, since)
    only_one = isinstance(schedule, schedules.schedule) or never_ran(since, now)
    found: list[int] = []
    while due is not None and due <= now and (not found or due > found[-1]):
        found.append(due)
        if only_one:
            break
        due = next_due(schedule, due)
    return found
