"""The scripts: every change that a node makes to its keys, as one atomic step.

A node judges its own votes. A script is atomic, and what a client knows is old when
it arrives. So the script that casts a vote also tests all that the vote depends on.

Each script is a Lua file of its own: ``acquire.lua`` is `ACQUIRE`. Its first lines
are the table of its KEYS, ARGV and replies. A line ``-- include shared/owned.lua`` is
replaced by the content of that file, which may include others. This happens once, when
this process imports the package: a node gets one text. ``host`` runs the scripts in
this process, on a ``keyspace``. ``__main__`` prints a script with its includes::

    redis-cli --eval <(python -m celery_redlock.scripts inspect) redlock:lock:a

Read ``acquire``, ``extend``, ``release`` and ``raise_fence`` first, then membership:
``join``, ``note``, ``counters``, ``sync``. ``scripts.keys`` has the table of all keys.

Scripts that grant, renew or restore a lock, that claim a call, or that close or open a
node compare the client's view with that of the node. No argument skips it. Each of the
others says why it compares none: RELEASE, for one, acts on a token that was made at
random for one attempt, and exists only where that attempt was granted.

Every script but `RELEASE` replies with a list. Its first item is a status:

===  ============  ===============================================================
 1   GRANTED       {1, number}: done; the number is the fence counter
 2   TAKEN         {2, value, ttl_ms}: another holder, call or job is there
 3   FREE          {3}: there is no holder, and the script did not take the lock
 4   QUARANTINED   {4, ms}: this node may have forgotten locks; wait
 5   UNSYNCED      {5, identity}: other nodes must confirm it first; '': no memory
 6   MISCONFIGURED {6, config}: it has another view than the client, or is closed
 7   EVICTS        {7, policy}: it may evict locks; said wherever 4, 5 and 6 are
===  ============  ===============================================================
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from functools import cache

# Each script is exported, too: see `ALL_SCRIPTS`.
__all__ = ["Script", "host", "keys", "keyspace", "load"]

GRANTED, TAKEN, FREE, QUARANTINED, UNSYNCED, MISCONFIGURED, EVICTS = range(1, 8)

_FOLDER = os.path.dirname(__file__)  # noqa: PTH120  (to import pathlib takes 4 ms)
_INCLUDE = "-- include "


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script.

    Attributes:
        name: The name of its file, of its operation in Python, and in traces.
        source: The Lua, includes resolved.
        sha: The SHA-1 of the source in hex, by which a node finds a loaded script.
    """

    name: str
    source: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False)
        object.__setattr__(self, "sha", digest.hexdigest())


def load(name: str) -> Script:
    """Read a script.

    Args:
        name: Of the file in this folder, without ``.lua``.

    Raises:
        OSError: There is no such file, or one that it includes.
    """
    return Script(name, _with_includes(f"{name}.lua", set()))


def _with_includes(path: str, included: set[str]) -> str:
    """Return a file in which each include is replaced; the same one once."""
    lines = []
    for line in _read(path).splitlines(keepends=True):
        if not line.startswith(_INCLUDE):
            lines.append(line)
        elif (other := line.removeprefix(_INCLUDE).rstrip()) not in included:
            included.add(other)
            lines.append(_with_includes(other, included))
    return "".join(lines)


@cache
def _read(path: str) -> str:
    with open(f"{_FOLDER}/{path}", "rb") as file:  # noqa: PTH123  (as above)
        return file.read().decode()


# The lock.
ACQUIRE = load("acquire")
EXTEND = load("extend")
RESTORE = load("restore")
RAISE_FENCE = load("raise_fence")
RELEASE = load("release")
INSPECT = load("inspect")
REQUEST_CANCEL = load("request_cancel")
FORCE_RELEASE = load("force_release")
LIST_RELEASES = load("list_releases")

# A lock on one of several names: see locks.permits.
ACQUIRE_PERMITS = load("acquire_permits")
INSPECT_PERMITS = load("inspect_permits")
JOIN_PERMIT_QUEUE = load("join_permit_queue")

# The wait queue of a lock.
JOIN_WAIT_QUEUE = load("join_wait_queue")
LEAVE_WAIT_QUEUE = load("leave_wait_queue")

# Membership: the restart guard, and the move to another configuration.
JOIN = load("join")
NOTE = load("note")
COUNTERS = load("counters")
SYNC = load("sync")
INITIALIZE = load("initialize")
CLOSE = load("close")
OPEN = load("open")
ABORT = load("abort")
REOPEN = load("reopen")

# Records of jobs: the successor of a running call, queued jobs, successes.
NOTE_PUBLISHED = load("note_published")
ENTER_SUCCESSOR = load("enter_successor")
START_SUCCESSOR = load("start_successor")
WITHDRAW_SUCCESSOR = load("withdraw_successor")
CLAIM = load("claim")
KEEP_CLAIM = load("keep_claim")
RELEASE_CLAIM = load("release_claim")
COOL_DOWN = load("cool_down")

# The backlog of a key: refused calls that come back, and how long runs take.
JOIN_BACKLOG = load("join_backlog")
NUMBER_IN_BACKLOG = load("number_in_backlog")
FIRST_IN_BACKLOG = load("first_in_backlog")
LEAVE_BACKLOG = load("leave_backlog")
READ_BACKLOG = load("read_backlog")
NOTE_RUN = load("note_run")

# Records of schedulers. A quarantined node keeps them, too: no vote depends on them.
RECORD_SLOTS = load("record_slots")
READ_SLOTS = load("read_slots")
MARK_SLOT = load("mark_slot")
RECORD_STANDBY = load("record_standby")
LIST_STANDBYS = load("list_standbys")

ALL_SCRIPTS = tuple(value for value in globals().values() if isinstance(value, Script))
