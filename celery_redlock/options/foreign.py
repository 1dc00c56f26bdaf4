"""Options of other libraries, each with the line of the page about its migration.

A name of another library would be an attribute of the task that nothing reads, and the
task would lock in another way than its author thinks. So these names are refused.
"""

from __future__ import annotations

from typing import NamedTuple


class ForeignOption(NamedTuple):
    """An option of another library: the first columns of its line in the table."""

    library: str
    there: str
    here: str

    def __str__(self) -> str:
        return (
            f"In {self.library}: {self.there}; here: {self.here}. "
            f"See docs/how-to/migrate-from-{self.library}.md."
        )


_ONCE = {
    "once": ("`once={...}`", "`redlock={...}`"),
    "graceful": ('`once={"graceful": True}`', '`on_conflict="skip"`'),
    "timeout": (
        '`once={"timeout": 600}`, `default_timeout`',
        "nothing; `claim_ttl=600` for waiting jobs",
    ),
    "unlock_before_run": (
        '`once={"unlock_before_run": True}`',
        '`unique_while="queued"`',
    ),
    "blocking": ('`"blocking"`, `"blocking_timeout"`', "nothing"),
}
_ONCE["default_timeout"] = _ONCE["timeout"]
_ONCE["blocking_timeout"] = _ONCE["blocking"]
_SINGLETON = {
    "lock_expiry": (
        "`lock_expiry=600`, `singleton_lock_expiry`",
        "nothing; `claim_ttl=600` for waiting jobs",
    ),
    "raise_on_duplicate": (
        "`raise_on_duplicate=True`, `singleton_raise_on_duplicate`",
        '`on_conflict="raise"`',
    ),
}
_HEIMDALL = {
    "heimdall": (
        '`base=HeimdallTask`, `heimdall={"unique": True}`',
        '`@singleton_task(unique_while="queued_or_running")`',
    ),
    "unique_raises": (
        '`"unique_raises": True`, `AlreadyQueuedError`',
        '`on_conflict="raise"`, `DuplicateTask`',
    ),
    "unique_timeout": (
        '`"unique_timeout": 600`',
        "nothing; `claim_ttl=600` for waiting jobs",
    ),
    "unique_wait_for_expiry": ('`"unique_wait_for_expiry": True`', "`unique_for=600`"),
    "times": ('`"times": 10, "per": 60`', "`rate=(10, 60)`"),
}
_HEIMDALL["per"] = _HEIMDALL["times"]
_RHUBARB = {"lock_ttl": ("`lock_ttl`, `rhubarb_task_lock_ttl`", "nothing")}

FOREIGN = {
    name: ForeignOption(library, *columns)
    for library, options in (
        ("celery-once", _ONCE),
        ("celery-singleton", _SINGLETON),
        ("celery-heimdall", _HEIMDALL),
        ("rhubarb", _RHUBARB),
    )
    for name, columns in options.items()
}
