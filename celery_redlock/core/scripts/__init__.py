"""All Lua, each script with its KEYS / ARGV / returns table and its SHA.

A node is judge of its own votes: whatever must be true for a vote to count is
tested by the node, in the script that casts it, because a script is atomic and
a client's knowledge is old by the time it arrives.

Keys on a node, under the prefix (default ``redlock``)::

    redlock:lock:{key}     the lock: its value tells the holder (core.lease)
    redlock:line:{key}     sorted set: who waits for the lock -> since when
    redlock:next:{key}     which of those who wait in their queue runs next
    redlock:claim:{key}    the job that waits in the queue
    redlock:cooldown:{key} the job that has succeeded a while ago
    redlock:fence          hash: stripe -> counter, "floor" -> least counter
    redlock:meta           hash: config, run_id, life, synced (core.guard)
    redlock:quarantine     exists while the node must not vote
    redlock:slots:{key}    hash: schedule entry -> up to when its slots were sent
    redlock:ran:{slot}     the id of the task that stands for this slot
    redlock:standby:{key}  hash: who stands by in this election -> until when

``locks`` has what votes, ``line`` what wakes those who wait, ``next`` what newcomers
tell each other and the holder, ``guard`` what admits
to the vote, ``slots`` what schedulers tell each other, ``claims`` what publishers do.
Every script but ``RELEASE`` answers with a list that begins with a status:

===  ============  =======================================================
 1   GRANTED       {1, number}: done; the number is the fence counter
 2   TAKEN         {2, value, ttl_ms}: another token holds the lock
 3   FREE          {3}: nobody holds the lock, and the script did not take it
 4   QUARANTINED   {4, ms}: this node may have forgotten locks; wait
 5   UNSYNCED      {5, run_id}: its fence counters are to be recovered first
 6   MISCONFIGURED {6, config}: it serves another set of nodes or max_ttl
===  ============  =======================================================

Numbers are formatted with ``%.0f``: Lua would write 1.79e+15 otherwise.
"""

from __future__ import annotations

from celery_redlock.core.scripts.claims import (
    CLAIM,
    COOL_DOWN,
    FREE_CLAIM,
    KEEP_CLAIM,
)
from celery_redlock.core.scripts.guard import CLOSE, COUNTERS, INITIALIZE, OPEN, SYNC
from celery_redlock.core.scripts.line import LINE_UP, STEP_OUT
from celery_redlock.core.scripts.locks import (
    ACQUIRE,
    EXTEND,
    INSPECT,
    RAISE_FENCE,
    RELEASE,
    RESTORE,
)
from celery_redlock.core.scripts.next import (
    CANCEL,
    LEAVE_NEXT,
    OFFER_NEXT,
    TAKE_NEXT,
)
from celery_redlock.core.scripts.script import (
    FREE,
    GRANTED,
    MISCONFIGURED,
    QUARANTINED,
    TAKEN,
    UNSYNCED,
    Script,
)
from celery_redlock.core.scripts.slots import (
    MARK_SLOT,
    READ_SLOTS,
    RECORD_SLOTS,
    STAND_BY,
    STANDBYS,
)

__all__ = [
    "ACQUIRE",
    "ALL_SCRIPTS",
    "CANCEL",
    "CLAIM",
    "CLOSE",
    "COOL_DOWN",
    "COUNTERS",
    "EXTEND",
    "FREE",
    "FREE_CLAIM",
    "GRANTED",
    "INITIALIZE",
    "INSPECT",
    "KEEP_CLAIM",
    "LEAVE_NEXT",
    "LINE_UP",
    "MARK_SLOT",
    "MISCONFIGURED",
    "OFFER_NEXT",
    "OPEN",
    "QUARANTINED",
    "RAISE_FENCE",
    "READ_SLOTS",
    "RECORD_SLOTS",
    "RELEASE",
    "RESTORE",
    "STANDBYS",
    "STAND_BY",
    "STEP_OUT",
    "SYNC",
    "TAKEN",
    "TAKE_NEXT",
    "UNSYNCED",
    "Script",
]

ALL_SCRIPTS = tuple(value for value in globals().values() if isinstance(value, Script))
