"""The names of all keys on a node.

=========================  ======================================================
key, under the prefix      content
=========================  ======================================================
``lock:{key}``             the lock; its value names the holder (``core.lease``)
``line:{key}``             sorted set, the wait queue: waiter -> since when
``next:{key}:{task}``      the call that runs next (``records.successors``)
``claim:{key}``            the job that waits in the queue (``records.claims``)
``cooldown:{key}``         the job that succeeded a short time ago
``slots:{election}``       hash: schedule entry -> until when its slots were sent
``ran:{slot}``             id of the task that runs for this slot of a schedule
``standby:{election}``     hash: standby of this election -> until when
``meta``                   hash: what the node must not forget, see below
``wake:{process}``         no key: the channel of one process with waiters
=========================  ======================================================

What a node must not forget are the fields of one hash: to lose a part is to lose all,
and that is noticed.

====================  ===========================================================
``config``            the settings of all clients (``core.configuration``)
``run_id``            the server process in which the node was admitted to the vote
``incarnation``       its present memory: another one after each loss
``synced``            the incarnation whose fence counters are complete
``quarantine_until``  until when the node must not vote, in ms since 1970
``0`` ... ``4095``    the fence counters; ``floor``: the least counter of all
====================  ===========================================================
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

__all__ = ["STRIPES", "Keys", "stripe_of"]

STRIPES = 4096


def stripe_of(key: str) -> int:
    """Return the number of the fence counter that this key shares with others.

    It is a field of the hash ``meta``, so that the memory for counters is bounded.
    """
    return zlib.crc32(key.encode()) % STRIPES


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of all keys under one prefix.

    Attributes:
        prefix: ``redlock_prefix``: the start of every name.
        meta: What the node must not forget.
    """

    prefix: str
    meta: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "meta", f"{self.prefix}:meta")

    def lock(self, key: str) -> str:
        """Return the name of the lock of this key."""
        return f"{self.prefix}:lock:{key}"

    def wait_queue(self, key: str) -> str:
        """Return the name of the wait queue of this key."""
        return f"{self.prefix}:line:{key}"

    def successor(self, key: str, task: str) -> str:
        """Return the name of the successor register of this key and task."""
        return f"{self.prefix}:next:{key}:{task}"

    def claim(self, key: str) -> str:
        """Return the name of the claim of a queued call."""
        return f"{self.prefix}:claim:{key}"

    def cooldown(self, key: str) -> str:
        """Return the name of the cool-down after a success."""
        return f"{self.prefix}:cooldown:{key}"

    def slots(self, election: str) -> str:
        """Return the name of beat's record of the slots that it sent."""
        return f"{self.prefix}:slots:{election}"

    def slot_run(self, slot: str) -> str:
        """Return the name of the record of the task that runs for this slot."""
        return f"{self.prefix}:ran:{slot}"

    def standby(self, election: str) -> str:
        """Return the name of the list of standbys of this election."""
        return f"{self.prefix}:standby:{election}"

    def channel(self, process: str) -> str:
        """Return the channel on which nodes wake the waiters of this process."""
        return f"{self.prefix}:wake:{process}"
