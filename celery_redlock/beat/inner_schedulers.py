"""Adapters of inner schedulers: the differences between the schedulers to wrap.

=======================  ==================  =====================================
scheduler                keeps last runs in  adapter
=======================  ==================  =====================================
``Scheduler``            memory              none
``PersistentScheduler``  a file of its own   none; the file may be old
``DatabaseScheduler``    a row that it       saves a corrected last run, and a run
(django-celery-beat)     writes later        of a one-off entry at once; discards
                                             unsaved rows when the term is lost;
                         reads the rows of all hours
``RedBeatScheduler``     a key, at once      saves a corrected last run; disables
                                             the lock of RedBeat
=======================  ==================  =====================================

The functions look at attributes and not at classes. So no scheduler has to be
installed, and a subclass works like its base.
"""

from __future__ import annotations

import logging
from datetime import timezone
from typing import TYPE_CHECKING, Any

from celery.beat import PersistentScheduler, ScheduleEntry, Scheduler
from celery.utils.imports import load_extension_class_names, symbol_by_name

from celery_redlock.beat.due_entries import as_datetime, as_us
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

log = logging.getLogger(__name__)

_ENTRY_POINTS = "celery.beat_schedulers"


def scheduler_class(wanted: object, usual: object, *, wrapper: type) -> Any:
    """Return the class of the scheduler to wrap, as the settings name it.

    Args:
        wanted: ``redlock_beat_scheduler``: a class, a path, or a name for ``-S``.
        usual: Celery's ``beat_scheduler``, which applies if ``wanted`` is None. If it
            names the wrapper, Celery's default applies.
        wrapper: The class that is going to wrap the scheduler.

    Raises:
        ConfigurationError: There is no such class, or it is the wrapper.
    """
    setting, value = "redlock_beat_scheduler", wanted
    if wanted is None:
        setting, value = "beat_scheduler", usual
    found = _class(setting, value)
    if not (isinstance(found, type) and hasattr(found, "setup_schedule")):
        raise ConfigurationError(
            f"{setting} is {value!r}, which is not a beat scheduler. Name a subclass "
            "of celery.beat:Scheduler, or remove the setting."
        )
    if not issubclass(found, wrapper):
        return found
    if wanted is None:
        return PersistentScheduler
    raise ConfigurationError(
        f"{setting} is {value!r}, which wraps other schedulers and not itself. Name "
        "the scheduler to wrap, or remove the setting."
    )


def _class(setting: str, wanted: object) -> Any:
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


def disable_own_lock(scheduler: Scheduler) -> None:
    """Keep RedBeat from waiting for its own lock: the election replaces it."""
    if hasattr(scheduler, "lock_key"):
        scheduler.lock_key = None


def read_all_hours(scheduler: Scheduler) -> None:
    """Let django-celery-beat read crontabs of all hours of the day.

    From 2.8 on it leaves out those that are hours away. A slot that was missed before
    beats are back would be neither sent nor logged.
    """
    if hasattr(scheduler, "_get_crontab_exclude_query"):
        from django.db.models import Q  # noqa: PLC0415  (not every project has Django)

        scheduler._get_crontab_exclude_query = Q  # noqa: SLF001  (it has no other way)


def entries_of(scheduler: Scheduler, names: Iterable[str]) -> Iterator[ScheduleEntry]:
    """Yield the entries whose last runs must be compared with the record.

    RedBeat is asked for the names in the record, because its ``schedule`` has only the
    entries that are due soon.
    """
    if not hasattr(scheduler.Entry, "from_key"):
        yield from scheduler.schedule.values()
        return
    for name in names:
        if (entry := _entry(scheduler, name)) is not None:
            yield entry


def is_wanted(scheduler: Scheduler, entry: ScheduleEntry) -> bool:
    """Tell whether the schedule still has an entry that could not be sent."""
    if runs_once(entry):  # its scheduler has disabled it when it was due
        return True
    found = _entry(scheduler, entry.name)
    return found is not None and is_enabled(found)


def _entry(scheduler: Scheduler, name: str) -> ScheduleEntry | None:
    """Return the entry of this name; None if the schedule does not have it any more."""
    from_key = getattr(scheduler.Entry, "from_key", None)
    if from_key is None:
        return scheduler.schedule.get(name)
    try:
        key = scheduler.Entry.generate_key(scheduler.app, name)
        return from_key(key, app=scheduler.app)
    except KeyError:
        return None


def set_last_run(scheduler: Scheduler, entry: ScheduleEntry, instant_us: int) -> None:
    """Set the last run of an entry, also in the scheduler's storage."""
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


def is_enabled(entry: ScheduleEntry) -> bool:
    """Tell whether an entry is sent. RedBeat also returns those that are not."""
    return bool(getattr(entry, "enabled", True))


def changes_of_rows(scheduler: Scheduler) -> dict[str, datetime]:
    """Return when each row of django-celery-beat was changed, by the name of its entry.

    To be called before ``setup_schedule``, which writes the entries of the settings
    into their rows: each leader changes them when its term begins.
    """
    manager: Any = getattr(getattr(scheduler, "Model", None), "_default_manager", None)
    if manager is None:  # sqlalchemy-celery-beat has a model, too
        return {}
    return dict(manager.values_list("name", "date_changed"))


def enabled_at(entry: ScheduleEntry, changes: Mapping[str, datetime]) -> int:
    """Return when an entry was enabled, if it has not run since then; or 0.

    django-celery-beat forgets the last run of a row that is disabled. In its place it
    takes the instant of the last change of the row. The changes are those before this
    term; see `changes_of_rows`.
    """
    changed = getattr(getattr(entry, "model", None), "date_changed", None)
    if not changed or entry.last_run_at != changed:
        return 0
    return as_us(changes.get(entry.name, changed))


def runs_once(entry: ScheduleEntry) -> bool:
    """Tell whether an entry ends when its scheduler has saved that it ran."""
    return bool(getattr(getattr(entry, "model", None), "one_off", False))


def discard(scheduler: Scheduler) -> None:
    """Close the scheduler of a lost term, without writing to shared storage."""
    dirty = getattr(scheduler, "_dirty", None)
    if dirty is not None:
        dirty.clear()
    try:
        scheduler.close()
    except Exception:
        # A lost term ends no beat, even if the scheduler's storage fails.
        log.exception("%s could not be closed.", type(scheduler).__name__)
    finally:
        cancel_save_at_exit(scheduler)


def cancel_save_at_exit(scheduler: Scheduler) -> None:
    """Cancel the save at the end of the process: each term has a new scheduler."""
    finalizer: Any = getattr(scheduler, "_finalize", None)
    if finalizer is not None:
        finalizer.cancel()
