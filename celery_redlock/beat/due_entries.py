"""The due slots of a schedule entry, computed alike by every beat.

Celery asks a schedule "is it due, and for how long should I sleep". The election needs
the exact instant, because the instant names the slot: two beats that count from the
same last run must compute the same microsecond. So these functions ask the schedule
with a clock that stands still.

============  ================================================================
schedule      due slots
============  ================================================================
interval      at most one, since it counts from the last run: the first after the
              last run, or, if that is older than the catch-up window, the first
              within the window in the same step
crontab,      each instant since the last run within the catch-up window,
solar, ...    oldest first
============  ================================================================

Instants are whole microseconds since 1970.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from celery import schedules
from celery.utils.time import maybe_make_aware

if TYPE_CHECKING:
    from celery.beat import ScheduleEntry
    from celery.schedules import BaseSchedule

_US = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# A scheduler marks an entry that never ran by a last run that is decades ago.
_NEVER = timedelta(days=3650) // _US
_QUARTER = timedelta(minutes=15) // _US  # daylight saving starts and ends on these
_LONGEST_SECOND_PASS = 8  # quarters of an hour

_T = TypeVar("_T")


def as_us(instant: datetime | None) -> int:
    """Return an instant in microseconds. A naive instant is UTC, and None is 1970."""
    return 0 if instant is None else (maybe_make_aware(instant) - _EPOCH) // _US


def last_run_of(entry: ScheduleEntry) -> int:
    """Return when an entry ran last; 0 or less if it never ran."""
    return as_us(entry.last_run_at) - _ahead(entry.schedule)


def as_datetime(instant_us: int, schedule: BaseSchedule) -> datetime:
    """Return an instant as the schedule would read it from its clock."""
    shown = _EPOCH + (instant_us + _ahead(schedule)) * _US
    return shown.astimezone(getattr(schedule, "tz", None))


def _ahead(schedule: BaseSchedule) -> int:
    """Return how far the ``nowfun`` of a schedule is ahead, in whole quarters.

    Celery takes what it shows for UTC if it has no zone, such as ``datetime.now``.
    """
    if not getattr(schedule, "nowfun", None):
        return 0
    shown, now = as_us(schedule.now()), as_us(schedule.app.now())
    return round((shown - now) / _QUARTER) * _QUARTER


def copy_of(original: _T, **changes: Any) -> _T:
    """Return a shallow copy with changed attributes, without calling the class."""
    copy: _T = object.__new__(type(original))
    vars(copy).update(vars(original), **changes)
    return copy


def next_due(schedule: BaseSchedule, since: int) -> int | None:
    """Return the first instant after ``since`` at which the schedule is due.

    A schedule with one fixed instant, such as a clocked task, returns that instant
    even if it has passed. A schedule without further instants returns None.
    """
    due = _next_due(schedule, since)
    # In the hour that the clock shows twice, crontab returns instants of the first
    # pass. It never has any in the second pass, so search from the end of that.
    ahead, tries = since, 0
    while due is not None and due <= since and tries < _LONGEST_SECOND_PASS:
        ahead = (ahead // _QUARTER + 1) * _QUARTER
        again = _next_due(schedule, ahead - 1)
        due = again if again is None or again > since else due
        tries += 1
    return due


def _next_due(schedule: BaseSchedule, since: int) -> int | None:
    then = as_datetime(since, schedule)
    stopped = copy_of(schedule, nowfun=lambda: then)
    left = stopped.remaining_estimate(then)
    return None if left is None else since + left // _US


def never_ran(since: int, now: int) -> bool:
    """Tell whether an entry has never run: its last run is ten years ago or more."""
    return now - since > _NEVER


def cut_to_window(schedule: BaseSchedule, since: int, earliest: int) -> int:
    """Return the instant to count from, so that no slot before ``earliest`` follows.

    An interval keeps its step: ten past the hour stays ten past the hour.
    """
    if since >= earliest or never_ran(since, earliest):
        return since
    first = next_due(schedule, since)
    if first is None or first >= earliest:
        return since
    if isinstance(schedule, schedules.schedule) and first > since:
        step = first - since
        return since - (since - earliest) // step * step - step
    return earliest - 1  # the window includes its first instant


def slots_due(
    schedule: BaseSchedule, since: int, now: int, most: int | None = None
) -> list[int]:
    """Return the due instants after ``since`` and up to ``now``, the oldest first.

    There are at most ``most`` of them; None: all.
    """
    if isinstance(schedule, schedules.schedule) or never_ran(since, now):
        most = 1
    due = next_due(schedule, since)
    found: list[int] = []
    while due is not None and due <= now and (not found or due > found[-1]):
        found.append(due)
        if len(found) == most:
            break
        due = next_due(schedule, due)
    return found
