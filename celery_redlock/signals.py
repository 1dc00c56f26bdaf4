"""Events of a lock's life, for whoever wants to know.

They are Celery signals: connect a function that takes ``**kwargs``; it is held
by a weak reference unless you say ``weak=False``, and its errors are logged and
go no further. No safety hangs on a receiver. The sender is the task.

========================  ============================================================
signal                    arguments
========================  ============================================================
``lock_acquired``         ``lease``, ``task_id``, ``waited``: seconds from when the
                          call wanted the lock
``lock_conflict``         ``conflict`` (a ``policies.Conflict``), ``decision``,
                          ``waited``: the same
``lock_outage``           ``outage`` (a ``policies.Outage``: too few nodes answered),
                          ``decision``, ``waited``: the same
``lock_renewed``          ``lease``, ``task_id``, ``lateness``: seconds by which the
                          renewal was later than a third of the ttl
``lock_lost``             ``lease``, ``task_id``, ``decision``
``lock_cancelled``        ``lease``, ``task_id``, ``cancelled_by``: a newcomer wants
                          the lock, and the run that holds it is told to end
``lock_released``         ``lease``, ``task_id``
``lock_heartbeat``        you send it: ``lock_heartbeat.send(sender=self)`` in a body
                          renews the lock of the task that sends it now, in the
                          background; useful before a stretch that holds the GIL
``publish_claimed``       ``claim`` (a ``publishing.Claim``): a call was claimed and
                          sent; whoever knows that it came to nothing may
                          ``claim.free()``
``publish_deduplicated``  ``conflict``, ``decision``; a call was to be sent, and
                          another job of it is here
``leader_elected``        ``term`` (an ``election.Term``); the sender is beat's
                          scheduler, whose loop it is sent in: be quick
``leader_resigned``       the same, and ``lost``: whether the term ended by itself
========================  ============================================================

``task_id`` is ``""`` where ``task.lock`` was used outside of a task. Receivers
of ``lock_renewed``, ``lock_lost`` and ``lock_cancelled`` run in a thread of their own:
the one that keeps the locks alive waits for nobody.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

__all__ = [
    "leader_elected",
    "leader_resigned",
    "lock_acquired",
    "lock_cancelled",
    "lock_conflict",
    "lock_heartbeat",
    "lock_lost",
    "lock_outage",
    "lock_released",
    "lock_renewed",
    "publish_claimed",
    "publish_deduplicated",
]

lock_acquired = Signal(
    name="lock_acquired", providing_args={"lease", "task_id", "waited"}
)
lock_conflict = Signal(
    name="lock_conflict", providing_args={"conflict", "decision", "waited"}
)
lock_outage = Signal(
    name="lock_outage", providing_args={"outage", "decision", "waited"}
)
lock_renewed = Signal(
    name="lock_renewed", providing_args={"lease", "task_id", "lateness"}
)
lock_lost = Signal(name="lock_lost", providing_args={"lease", "task_id", "decision"})
lock_cancelled = Signal(
    name="lock_cancelled", providing_args={"lease", "task_id", "cancelled_by"}
)
lock_released = Signal(name="lock_released", providing_args={"lease", "task_id"})
lock_heartbeat = Signal(name="lock_heartbeat", providing_args=set())
publish_claimed = Signal(name="publish_claimed", providing_args={"claim"})
publish_deduplicated = Signal(
    name="publish_deduplicated", providing_args={"conflict", "decision"}
)
leader_elected = Signal(name="leader_elected", providing_args={"term"})
leader_resigned = Signal(name="leader_resigned", providing_args={"term", "lost"})
