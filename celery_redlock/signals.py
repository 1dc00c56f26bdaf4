"""Celery signals about locks, claims and terms of leaders.

Connect a function that accepts ``**kwargs``. Celery holds it by a weak reference,
unless you say ``weak=False``. An error in a receiver is logged and goes no further, and
no safety depends on a receiver. The sender is the task.

========================  ============================================================
signal                    arguments
========================  ============================================================
``lock_acquired``         ``lease``; ``task_id``; ``waited``: seconds since this copy of
                          the call first asked for the lock; ``in_backlog``: seconds
                          since the call joined the backlog of its key, in this copy
                          or an earlier one, None if it did not
``lock_conflict``         ``conflict``, a ``policies.Conflict``; ``decision``;
                          ``waited``: seconds since this copy of the call first asked
                          for the lock
``lock_outage``           ``outage``, a ``policies.Outage``: too few nodes answered;
                          ``decision``; ``waited``: seconds since this copy of the
                          call first asked for the lock
``lock_renewed``          ``lease``; ``task_id``; ``lateness``: seconds by which the
                          renewal was later than a third of the ttl
``lock_lost``             ``lease``; ``task_id``; ``decision``
``lock_force_released``   ``lease``; ``task_id``; ``released_by``: the operator that
                          released the lock of the running call, with the reason, as
                          text. ``lock_lost`` follows
``lock_cancelled``        ``lease``; ``task_id``; ``cancelled_by``: the id of the newer
                          call that wants the lock. The running call that holds the
                          lock is asked to end
``lock_released``         ``lease``; ``task_id``
``lock_heartbeat``        none. You send it: ``lock_heartbeat.send(sender=self)`` in
                          the body of a task renews its lock now, in the background.
                          Send it before a stretch that holds the GIL
``publish_claimed``       ``claim``, a ``task.publishing.Claim``: a call was claimed
                          and published. If you know that the message was lost, call
                          ``claim.release()``
``publish_deduplicated``  ``conflict``, a ``policies.Conflict``; ``decision``: a call
                          met an existing job when it was to be published
``leader_elected``        ``term``, an ``election.Term`` that begins. The sender is
                          beat's scheduler, and its loop waits for the receivers
``leader_resigned``       ``term``, an ``election.Term`` that is over; ``lost``:
                          whether it ended by itself. The sender is beat's scheduler,
                          and its loop waits for the receivers
========================  ============================================================

``task_id`` is ``""`` if ``task.lock`` was used outside of a task. Receivers of
``lock_renewed``, ``lock_force_released``, ``lock_lost`` and ``lock_cancelled`` run in a
thread of their own, so a slow receiver never delays the renewal of locks.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

__all__ = [
    "leader_elected",
    "leader_resigned",
    "lock_acquired",
    "lock_cancelled",
    "lock_conflict",
    "lock_force_released",
    "lock_heartbeat",
    "lock_lost",
    "lock_outage",
    "lock_released",
    "lock_renewed",
    "publish_claimed",
    "publish_deduplicated",
]


def _signal(name: str, *arguments: str) -> Signal:
    return Signal(name=name, providing_args=set(arguments))


lock_acquired = _signal("lock_acquired", "lease", "task_id", "waited", "in_backlog")
lock_conflict = _signal("lock_conflict", "conflict", "decision", "waited")
lock_outage = _signal("lock_outage", "outage", "decision", "waited")
lock_renewed = _signal("lock_renewed", "lease", "task_id", "lateness")
lock_force_released = _signal("lock_force_released", "lease", "task_id", "released_by")
lock_lost = _signal("lock_lost", "lease", "task_id", "decision")
lock_cancelled = _signal("lock_cancelled", "lease", "task_id", "cancelled_by")
lock_released = _signal("lock_released", "lease", "task_id")
lock_heartbeat = _signal("lock_heartbeat")
publish_claimed = _signal("publish_claimed", "claim")
publish_deduplicated = _signal("publish_deduplicated", "conflict", "decision")
leader_elected = _signal("leader_elected", "term")
leader_resigned = _signal("leader_resigned", "term", "lost")
