"""The scripts: every change that a node makes to its keys, as one atomic step.

A node judges its own votes. A script is atomic, and what a client knows is old when
it arrives. So the script that casts a vote also tests all that the vote depends on.

Each script is a Lua file of its own: ``acquire.lua`` is `ACQUIRE`. Its first lines
are the table of its KEYS, ARGV and replies. Files that several scripts include are in
``shared``. `registry` loads them; ``operations`` states the same scripts once more in
Python, for stores without Lua. ``__main__`` prints a script with its includes::

    redis-cli --eval <(python -m celery_redlock.core.scripts inspect) redlock:lock:a

Read ``acquire``, ``extend``, ``release`` and ``raise_fence`` first, then the restart
guard: ``counters``, ``sync``, ``initialize``. ``core.keys`` has the table of all keys.

Every script but `RELEASE` replies with a list. Its first item is a status:

===  ============  ===============================================================
 1   GRANTED       {1, number}: done; the number is the fence counter
 2   TAKEN         {2, value, ttl_ms}: another holder, call or job is there
 3   FREE          {3}: there is no holder, and the script did not take the lock
 4   QUARANTINED   {4, ms}: this node may have forgotten locks; wait
 5   UNSYNCED      {5, incarnation}: its fence counters must be recovered first
 6   MISCONFIGURED {6, config}: it serves another set of nodes or another max_ttl
===  ============  ===============================================================
"""

from __future__ import annotations

from celery_redlock.core.scripts.registry import (
    FREE,
    GRANTED,
    MISCONFIGURED,
    QUARANTINED,
    TAKEN,
    UNSYNCED,
    Script,
    load,
)

__all__ = [
    "ACQUIRE",
    "ALL_SCRIPTS",
    "CLAIM",
    "CLOSE",
    "COOL_DOWN",
    "COUNTERS",
    "ENTER_SUCCESSOR",
    "EXTEND",
    "FREE",
    "GRANTED",
    "INITIALIZE",
    "INSPECT",
    "JOIN_WAIT_QUEUE",
    "KEEP_CLAIM",
    "LEAVE_WAIT_QUEUE",
    "LIST_STANDBYS",
    "MARK_SLOT",
    "MISCONFIGURED",
    "OPEN",
    "QUARANTINED",
    "RAISE_FENCE",
    "READ_SLOTS",
    "RECORD_SLOTS",
    "RECORD_STANDBY",
    "RELEASE",
    "RELEASE_CLAIM",
    "REQUEST_CANCEL",
    "RESTORE",
    "START_SUCCESSOR",
    "SYNC",
    "TAKEN",
    "UNSYNCED",
    "WITHDRAW_SUCCESSOR",
    "Script",
    "operations",
]

# The lock.
ACQUIRE = load("acquire")
EXTEND = load("extend")
RESTORE = load("restore")
RAISE_FENCE = load("raise_fence")
RELEASE = load("release", whole=True)
INSPECT = load("inspect")
REQUEST_CANCEL = load("request_cancel")

# The wait queue of a lock.
JOIN_WAIT_QUEUE = load("join_wait_queue")
LEAVE_WAIT_QUEUE = load("leave_wait_queue")

# The restart guard, and the move to another configuration.
COUNTERS = load("counters")
SYNC = load("sync")
INITIALIZE = load("initialize")
CLOSE = load("close")
OPEN = load("open")

# Records of jobs: the successor of a running call, queued jobs, successes.
ENTER_SUCCESSOR = load("enter_successor")
START_SUCCESSOR = load("start_successor")
WITHDRAW_SUCCESSOR = load("withdraw_successor")
CLAIM = load("claim")
KEEP_CLAIM = load("keep_claim")
RELEASE_CLAIM = load("release_claim")
COOL_DOWN = load("cool_down")

# Records of schedulers. A quarantined node keeps them, too: no vote depends on them.
RECORD_SLOTS = load("record_slots")
READ_SLOTS = load("read_slots")
MARK_SLOT = load("mark_slot")
RECORD_STANDBY = load("record_standby")
LIST_STANDBYS = load("list_standbys")

ALL_SCRIPTS = tuple(value for value in globals().values() if isinstance(value, Script))
