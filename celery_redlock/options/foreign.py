"""Names that are meant as lock options and are none, each with what to write instead.

Such a name would be an attribute of the task that nothing reads, and the task would
lock in another way than its author thinks. So these names are refused: the options of
other libraries, the settings of an app, and usual names for options of a lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.basics.command import DOCS

if TYPE_CHECKING:
    from collections.abc import Collection

_OPTIONS = {
    "celery-once": (
        *("once", "graceful", "timeout", "default_timeout", "unlock_before_run"),
        *("blocking", "blocking_timeout"),
    ),
    "celery-singleton": ("lock_expiry", "raise_on_duplicate"),
    "celery-heimdall": (
        *("heimdall", "unique_raises", "unique_timeout", "unique_wait_for_expiry"),
        *("unique_lock_blocking", "unique_lock_timeout", "lock_prefix"),
        *("times", "per"),
    ),
    "rhubarb": ("lock_ttl",),
}

FOREIGN = {
    name: f"It is an option of {library}. What to write "
    f"instead of it: {DOCS}how-to/migrate-from-{library}.md"
    for library, names in _OPTIONS.items()
    for name in names
}

_USUAL = {
    "cooldown": "Did you mean 'unique_for'?",
    "lock_key": "Did you mean 'key'?",
    "lock_timeout": "A lock is renewed until its run ends, and needs no timeout. ttl "
    "says how long nodes keep the lock of a process that was killed. Celery's "
    "time_limit ends a run.",
    "on_lost": "Did you mean 'on_lock_lost'?",
    "wait": "Did you mean 'wait_timeout'?",  # lock() has it
}
_SETTING = "redlock_"


def remedy_of(name: str, known: Collection[str]) -> str:
    """Return what to write instead of a name that is none of the ``known`` options.

    It is "" for a name that may be an attribute of a task.
    """
    if not name.startswith(_SETTING):
        return FOREIGN.get(name) or _USUAL.get(name, "")
    option = name.removeprefix(_SETTING)
    here = f"Write {option} for this task alone. " if option in known else ""
    about = f"Names with {_SETTING} are settings of the app, and belong in app.conf."
    return here + about
