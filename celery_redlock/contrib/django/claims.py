"""Releases a claim if the transaction in which it was taken is rolled back.

::

    with transaction.atomic():
        order = Order.objects.create(...)
        ship.delay(order.pk)             # sent and claimed at once
        charge(order)                    # fails: the order is gone, and its job
                                         # will not find it

The next attempt may have the same order id. It must not be refused as a duplicate of
the job without an order, so a rollback of the transaction, or of the savepoint,
releases the claim. The job stays in the queue: a broker has no part in a transaction.

The claim is also released if a function of the project fails that was given to
``on_commit`` before: Django then drops all later ones, as after a rollback. A second
job can be published then, and the lock keeps the two apart. With ``robust=True`` Django
goes on after a function that fails.

In a transaction, better use ``ship.delay_on_commit(order.pk)``: it claims and sends
when the transaction commits, and does nothing if it is rolled back.

The app ``"celery_redlock.contrib.django"`` in ``INSTALLED_APPS`` connects this.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

from django.db import connections

if TYPE_CHECKING:
    from celery_redlock.task.publishing import Claim


class _OnCommit:
    """A callback for the commit. The claim is released if Django drops it uncalled.

    Django has no signal for a rollback. It drops the callbacks for the commit, also
    those of a savepoint that is rolled back alone. A forked child that drops its copies
    has rolled nothing back.
    """

    def __init__(self, claim: Claim) -> None:
        self._release = weakref.finalize(self, _release_in, os.getpid(), claim)
        self._release.atexit = False  # the nodes may be gone by then

    def __call__(self) -> None:
        self._release.detach()


def _release_in(pid: int, claim: Claim) -> None:
    if pid == os.getpid():
        claim.release()


def release_on_rollback(claim: Claim, **_: object) -> None:
    """Release a claim if a transaction of this thread is rolled back."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            connection.on_commit(_OnCommit(claim))
