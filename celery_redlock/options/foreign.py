"""Options of other libraries, each with the library that has it.

A name of another library would be an attribute of the task that nothing reads, and the
task would lock in another way than its author thinks. So these names are refused. The
page about the migration from the library says what to write instead.
"""

from __future__ import annotations

_OPTIONS = {
    "celery-once": (
        *("once", "graceful", "timeout", "default_timeout", "unlock_before_run"),
        *("blocking", "blocking_timeout"),
    ),
    "celery-singleton": ("lock_expiry", "raise_on_duplicate"),
    "celery-heimdall": (
        *("heimdall", "unique_raises", "unique_timeout", "unique_wait_for_expiry"),
        *("times", "per"),
    ),
    "rhubarb": ("lock_ttl",),
}

FOREIGN = {
    name: f"It is an option of {library}. docs/how-to/migrate-from-{library}.md says "
    "what to write here instead of it."
    for library, names in _OPTIONS.items()
    for name in names
}
