"""``celery -A proj beat -S redlock``: any number of beats, of which one sends.

``scheduler`` wraps whichever scheduler the project uses, ``leading`` is that one
while this beat leads, ``office`` is what it may do in its term, ``due`` tells which
slots are due, and ``inner`` knows in what the schedulers differ that can be wrapped.
"""

from __future__ import annotations

from celery_redlock.beat.scheduler import RedlockScheduler, election_key

__all__ = ["RedlockScheduler", "election_key"]
