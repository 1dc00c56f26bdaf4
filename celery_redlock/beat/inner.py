"""In what schedulers differ that can be wrapped, as far as it matters here.

=======================  ==================  =====================================
scheduler                keeps last runs in  so
=======================  ==================  =====================================
``Scheduler``            memory              nothing
``PersistentScheduler``  a file of its own   nothing: the file may be old
``DatabaseScheduler``    a row that it       a correction is to be saved; what is
(django-celery-beat)     writes later        unsaved when the term was lost is not
``RedBeatScheduler``     a key, at once      a correction is to be saved; its own
                                             lock is not used
=======================  ==================  =====================================

They are told apart by what they have and not by their classes: none has to be
installed, and a subclass is no stranger.
"""

from __future__ import annotations

import logging
from datetime import timezone
from typing import TYPE_CHECKING, Any

from celery.beat import PersistentScheduler
from celery.utils.imports import load_extension_class_names, symbol_by_name

from celery_redlock.beat.due import as_datetime
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery.beat import ScheduleEntry, Scheduler

__all__ = [
    "drop",
    "entries_of",
    "forget",
    "ignore_own_lock",
    "scheduler_class",
    "set_last_run",
]

log = logging.getLogger("celery_redlock.beat")

_ENTRY_POINTS = "celery.beat_schedulers"


def scheduler_class(wanted: Any, usual: Any, *, not_itself: type) -> Any:
    """Return the class that a setting names: itself, a path, or a name for ``-S``.

    Args:
        wanted: The value of ``redlock_beat_scheduler``; None if it is not set.
        usual: The value of Celery's ``beat_scheduler``, which is taken then, unless
            it names what wraps: then it is Celery's default.
        not_itself: What is going to wrap it.

    Raises:
        ConfigurationError: There is no such class, or it is the one that wraps.
    """
    if wanted is not None:
        return _scheduler("redlock_beat_scheduler", wanted, not_itself)
    found = _class("beat_scheduler", usual)
    if isinstance(found, type) and issubclass(found, not_itself):
        return PersistentScheduler
    return _scheduler("beat_scheduler", usual, not_itself)


def _scheduler(setting: str, wanted: Any, not_itself: type) -> Any:
    found = _class(setting, wanted)
    if not (isinstance(found, type) and hasattr(found, "setup_schedule")):
        raise ConfigurationError(
            f"{setting} is {wanted!r}, which is no beat scheduler."
        )
    if issubclass(found, not_itself):
        raise ConfigurationError(
            f"{setting} is {wanted!r}, which is what wraps others. Name "
            "the scheduler that it is to wrap, or leave it out."
        )
    return found


def _class(setting: str, wanted: Any) -> Any:
    names = dict(load_extension_class_names(_ENTRY_POINTS))
    try:
        return symbol_by_name(wanted, aliases=names)
    except (ImportError, AttributeError, ValueError) as error:
        known = ", ".join(sorted(set(names) - {"redlock"})) or "none"
        raise ConfigurationError(
            f"{setting} is {wanted!r}, which cannot be imported: {error}. "
            'Write "module:Class", or one of the names that are installed here: '
            f"{known}."
        ) from error


def ignore_own_lock(scheduler: Scheduler) -> None:
    """Keep RedBeat from waiting for its lock: it has ours."""
    if hasattr(scheduler, "lock_key"):
        scheduler.lock_key = None


def entries_of(scheduler: Scheduler, names: Iterable[str]) -> Iterator[ScheduleEntry]:
    """Yield the entries whose last runs are to be looked at.

    RedBeat's ``schedule`` has only what is due soon, so it is asked by name.
    """
    from_key = getattr(scheduler.Entry, "from_key", None)
    if from_key is None:
        yield from scheduler.schedule.values()
        return
    for name in names:
        key = scheduler.Entry.generate_key(scheduler.app, name)
        try:
            yield from_key(key, app=scheduler.app)
        except KeyError:  # it was taken out of the schedule
            continue


def set_last_run(scheduler: Scheduler, entry: ScheduleEntry, instant_us: int) -> None:
    """Let an entry have run last at this instant, also where it is stored."""
    when = as_datetime(instant_us, entry.schedule)
    if entry.last_run_at is not None and entry.last_run_at.tzinfo is None:
        when = when.astimezone(timezone.utc).replace(tzinfo=None)
    if hasattr(entry, "reschedule"):  # RedBeat
        entry.reschedule(last_run_at=when)
        return
    entry.last_run_at = when
    if hasattr(entry, "model"):  # django-celery-beat
        entry.model.last_run_at = when
        scheduler._dirty.add(entry.name)  # noqa: SLF001  (it has no other way)


def drop(scheduler: Scheduler) -> None:
    """Give up a scheduler whose term was lost, without writing what is shared."""
    dirty = getattr(scheduler, "_dirty", None)
    if dirty is not None:
        dirty.clear()
    try:
        scheduler.close()
    except Exception:
        # Losing a term ends no beat, whatever the scheduler's storage says.
        log.exception("%s could not be closed.", type(scheduler).__name__)
    finally:
        forget(scheduler)


def forget(scheduler: Scheduler) -> None:
    """Take a scheduler out of what is saved at exit; each term has a new one."""
    finalizer: Any = getattr(scheduler, "_finalize", None)
    if finalizer is not None:
        finalizer.cancel()
