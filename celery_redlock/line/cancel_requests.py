"""Ask the holder of a lock to end its run.

The request is stored with the lock itself, on all nodes. So it goes when the lock goes,
and cannot be taken for a request to a later holder. The holder reads it with its next
renewal (``locks.extension``). Its run is then interrupted with ``LockCancelled``, and
releases the lock when it ends. No other client takes the lock away from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.scripts import REQUEST_CANCEL
from celery_redlock.wire.requests import majority_answered

if TYPE_CHECKING:
    from celery_redlock.locks.lease import Holder
    from celery_redlock.locks.redlock import Redlock


def ask_to_end(redlock: Redlock, key: str, holder: Holder, by: str) -> int:
    """Store a request with the lock that asks this holder, and no other one, to end.

    Returns:
        How many nodes stored it, by the time that a majority answered. One of
        them is enough.
    """
    request = redlock.nodes.ask(
        REQUEST_CANCEL,
        [redlock.keys.lock(key)],
        [holder.token, by.replace("\n", " ")],
        done_when=majority_answered,
    )
    return request.ballot.granted
