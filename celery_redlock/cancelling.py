"""Ask the one that holds a lock to end.

A note is left with the lock itself, on all nodes: it goes when the lock goes, and
cannot be meant for a successor. The holder reads it with its next renewal
(``core.extension``), is struck with ``LockCancelled`` (``execution``), and lets go of
the lock when it has ended. Nobody takes the lock away from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.core.question import Question, by_majority
from celery_redlock.core.scripts import CANCEL

if TYPE_CHECKING:
    from celery_redlock.core.lease import Holder
    from celery_redlock.core.redlock import Redlock

__all__ = ["ask_to_end"]


def ask_to_end(redlock: Redlock, key: str, holder: Holder, who: str) -> int:
    """Leave word for the holder that somebody else wants the lock.

    Args:
        redlock: The lock service.
        key: The name of the lock.
        holder: Whom it is for; nobody else gets it.
        who: Who wants it, in one line.

    Returns:
        How many nodes have it, by the time that a majority has answered. One of
        them is enough.
    """
    question = Question(
        CANCEL,
        [redlock.commands.lock_key(key)],
        [holder.token, who.replace("\n", " ")],
        labels=redlock.labels,
        settle=by_majority,
    )
    redlock.transport.ask(question)
    return question.ballot.granted
