"""Beat with leader election: ``celery -A proj beat -S redlock``.

Any number of beats run, and one of them sends. Read the files in this order:
``scheduler`` campaigns, and ticks the project's own scheduler while this beat leads;
``term`` says until when the leader may send, and holds a message back after that;
``gated_scheduler`` is the project's scheduler during one term, which sends each slot
once; ``due_entries`` computes the due slots of a schedule; ``inner_schedulers`` are
the adapters of the schedulers that can be wrapped.

Exports the scheduler and the key of its election.
"""

from __future__ import annotations

from celery_redlock.beat.scheduler import RedlockScheduler, election_key

__all__ = ["RedlockScheduler", "election_key"]
