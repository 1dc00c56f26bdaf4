"""Give a claim back when the transaction in which it was taken is rolled back.

::

    with transaction.atomic():
        order = Order.objects.create(...)
        ship.delay(order.pk)             # sent and claimed at once
        charge(order)                    # fails: the order is gone, and the job
                                         # that is on its way will not find it

Whoever tries again has another order, or the same one, and must not be told that
its job is in the queue already. So with the transaction, or the savepoint, the claim
is taken back. (The job is not: a broker has no part in a transaction.)

``ship.delay_on_commit(order.pk)`` is what to use in a transaction. It sends and claims
when there is something to ship, and nothing if that never comes.

The app ``"celery_redlock.contrib.django"`` in ``INSTALLED_APPS`` sees to it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from django.db import connections

from celery_redlock.signals import publish_claimed

if TYPE_CHECKING:
    from celery_redlock.publishing import Claim

__all__ = ["begin", "give_back_on_rollback"]


class _KeptByCommit:
    """A callback for the commit. If Django drops it uncalled, the claim is freed.

    Django tells nobody of a rollback. It forgets what was to be done on commit, also
    where only the savepoint is rolled back in which that was asked for.
    """

    def __init__(self, claim: Claim) -> None:
        self._freeing = weakref.finalize(self, claim.free)
        self._freeing.atexit = False  # the nodes may be gone by then

    def __call__(self) -> None:
        self._freeing.detach()


def give_back_on_rollback(claim: Claim) -> None:
    """Free a claim if any transaction that this thread is in is rolled back."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            connection.on_commit(_KeptByCommit(claim))


def begin() -> None:
    """Look after each claim that is taken in this process from now on."""
    publish_claimed.connect(_on_claimed, weak=False)


def _on_claimed(claim: Claim, **_: Any) -> None:
    give_back_on_rollback(claim)
