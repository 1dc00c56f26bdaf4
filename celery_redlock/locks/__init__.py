"""Redlock on a majority of independent Redis masters, or in one store. Knows no Celery.

Read in this order:

1.  ``redlock``: the lock service, and the algorithm in one picture.
2.  ``lease``: the result of an acquire, and the holder as the nodes store it.
    ``failure``: the error for a lost vote.
3.  ``fence``: the number that grows with each grant.
4.  ``extension``: one renewal. ``watchdog``: the thread that renews all leases of a
    process; ``renewal_schedule`` has its data structures. ``forced_release``: what a
    holder learns of an operator's release.
5.  ``wait_queue``: waiting for a lock that another client holds. ``limits``,
    ``permits``: several holders of a key, and so many starts in a period.

How votes are counted is in ``wire.quorum``; who may vote, in ``members``.
"""

__all__ = [
    "failure",
    "forced_release",
    "lease",
    "limits",
    "permits",
    "redlock",
    "watchdog",
]
