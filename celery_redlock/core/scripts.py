"""All Lua, each script with its KEYS / ARGV / returns table and its SHA.

A node is judge of its own votes: whatever must be true for a vote to count is
tested by the node, in the script that casts it, because a script is atomic and
a client's knowledge is old by the time it arrives.

Keys on a node, under the prefix (default ``redlock``)::

    redlock:lock:{key}     the lock: its value tells the holder (core.lease)
    redlock:fence          hash: stripe -> counter, "floor" -> least counter
    redlock:meta           hash: config, run_id, synced (core.guard)
    redlock:quarantine     exists while the node must not vote

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

import hashlib
from dataclasses import dataclass, field

__all__ = [
    "ACQUIRE",
    "ALL_SCRIPTS",
    "CLOSE",
    "COUNTERS",
    "EXTEND",
    "FREE",
    "GRANTED",
    "INITIALIZE",
    "INSPECT",
    "MISCONFIGURED",
    "OPEN",
    "QUARANTINED",
    "RAISE_FENCE",
    "RELEASE",
    "RESTORE",
    "SYNC",
    "TAKEN",
    "UNSYNCED",
    "Script",
]

GRANTED, TAKEN, FREE, QUARANTINED, UNSYNCED, MISCONFIGURED = range(1, 7)


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script.

    Attributes:
        name: What it is called in tests and traces.
        source: The Lua.
        whole: Send the source each time, where nobody may hear "forgotten".
        sha: Its SHA-1 in hex, by which a node knows it once it has seen it.
    """

    name: str
    source: str
    whole: bool = False
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False)
        object.__setattr__(self, "sha", digest.hexdigest())


# Shared by the scripts below; all of it is local to the one call.
_OWNED = """
local function owned(value, token)
  return value and string.sub(value, 1, #token) == token
end
"""

_RUN_ID = """
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
"""

# INFO is one of the few ways for a script to learn that it runs in another
# process than before. (uptime_in_seconds is wall clock; CONFIG is not allowed.)
ACQUIRE = Script(
    "acquire",
    f"""
-- Take the lock, if this node may vote and nobody else has it.
-- KEYS  1 lock  2 fence  3 meta  4 quarantine
-- ARGV  1 token  2 facts  3 ttl_ms  4 stripe  5 hint_us  6 hint_tolerance_us
--       7 config (empty: no restart guard)  8 quarantine_ms
-- The same token again is granted again, with the same number.
{_OWNED}
if ARGV[7] ~= '' then
  {_RUN_ID}
  local meta = redis.call('HMGET', KEYS[3], 'config', 'run_id', 'synced')
  if meta[1] and meta[1] ~= ARGV[7] then return {{6, meta[1]}} end
  if meta[2] ~= run_id then
    redis.call('HSET', KEYS[3], 'config', ARGV[7], 'run_id', run_id)
    redis.call('SET', KEYS[4], '', 'PX', ARGV[8])
    return {{4, tonumber(ARGV[8])}}
  end
  local left = redis.call('PTTL', KEYS[4])
  if left ~= -2 then return {{4, left}} end
  if meta[3] ~= run_id then return {{5, run_id}} end
end
local value = redis.call('GET', KEYS[1])
if owned(value, ARGV[1]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {{1, tonumber(string.match(value, '\\n(%d+)'))}}
end
if value then return {{2, value, redis.call('PTTL', KEYS[1])}} end
local counters = redis.call('HMGET', KEYS[2], ARGV[4], 'floor')
local number = math.max(tonumber(counters[1]) or 0, tonumber(counters[2]) or 0) + 1
local hint, now = tonumber(ARGV[5]), redis.call('TIME')
if math.abs(hint - (now[1] * 1000000 + now[2])) <= tonumber(ARGV[6]) then
  number = math.max(number, hint)
end
local text = string.format('%.0f', number)
redis.call('HSET', KEYS[2], ARGV[4], text)
redis.call('SET', KEYS[1], ARGV[1] .. '\\n' .. text .. '\\n' .. ARGV[2], 'PX', ARGV[3])
return {{1, number}}
""",
)

# A node whose meta is gone has forgotten its locks as well: nothing to extend,
# and what RESTORE writes there binds nobody until the next ACQUIRE quarantines it.
_SAME_CONFIG = """
local config = redis.call('HGET', KEYS[3], 'config')
if ARGV[1] ~= '' and config and config ~= ARGV[1] then return {6, config} end
"""

EXTEND = Script(
    "extend",
    f"""
-- Keep the lock, if it is still ours. Never creates it.
-- KEYS  1 lock  2 fence  3 meta
-- ARGV  1 config  2 token  3 ttl_ms
{_OWNED}{_SAME_CONFIG}
local value = redis.call('GET', KEYS[1])
if owned(value, ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {{1, 0}}
end
if value then return {{2, value, redis.call('PTTL', KEYS[1])}} end
return {{3}}
""",
)

RESTORE = Script(
    "restore",
    f"""
-- Give the lock to a node that is without it, on behalf of a lease that is valid.
-- The node's fence counter is raised with it, as if it had granted.
-- KEYS  1 lock  2 fence  3 meta
-- ARGV  1 config  2 token  3 facts  4 ttl_ms  5 stripe  6 fence
{_OWNED}{_SAME_CONFIG}
local value = redis.call('GET', KEYS[1])
if value and not owned(value, ARGV[2]) then
  return {{2, value, redis.call('PTTL', KEYS[1])}}
end
local counter = tonumber(redis.call('HGET', KEYS[2], ARGV[5])) or 0
if counter < tonumber(ARGV[6]) then redis.call('HSET', KEYS[2], ARGV[5], ARGV[6]) end
value = ARGV[2] .. '\\n' .. ARGV[6] .. '\\n' .. ARGV[3]
redis.call('SET', KEYS[1], value, 'PX', ARGV[4])
return {{1, 0}}
""",
)

RAISE_FENCE = Script(
    "raise_fence",
    f"""
-- Lift the counter to the fence of a grant, but only while the lock is ours.
-- KEYS  1 lock  2 fence
-- ARGV  1 token  2 facts  3 stripe  4 fence
{_OWNED}
local value = redis.call('GET', KEYS[1])
if not owned(value, ARGV[1]) then return {{3}} end
local counter = tonumber(redis.call('HGET', KEYS[2], ARGV[3])) or 0
if counter < tonumber(ARGV[4]) then
  redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
  redis.call('SET', KEYS[1], ARGV[1] .. '\\n' .. ARGV[4] .. '\\n' .. ARGV[2], 'KEEPTTL')
end
return {{1, tonumber(ARGV[4])}}
""",
)

RELEASE = Script(
    "release",
    f"""
-- Let go of the lock, if it is ours. Twice is harmless.
-- KEYS  1 lock
-- ARGV  1 token, or a base with its dot  2 keep_ms (0: delete now)
-- Returns 1 if it was ours, else 0.
{_OWNED}
if not owned(redis.call('GET', KEYS[1]), ARGV[1]) then return 0 end
if ARGV[2] == '0' then redis.call('DEL', KEYS[1])
else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
""",
    whole=True,
)

INSPECT = Script(
    "inspect",
    """
-- Tell who holds the lock. Changes nothing.
-- KEYS  1 lock
local value = redis.call('GET', KEYS[1])
if value then return {2, value, redis.call('PTTL', KEYS[1])} end
return {3}
""",
)

COUNTERS = Script(
    "counters",
    f"""
-- Read all fence counters of a node that may vote.
-- KEYS  1 fence  2 meta  3 quarantine
-- ARGV  1 config
-- Returns {{1, field, counter, field, counter, ...}}
{_RUN_ID}
local meta = redis.call('HMGET', KEYS[2], 'config', 'run_id', 'synced')
if meta[1] and meta[1] ~= ARGV[1] then return {{6, meta[1]}} end
if meta[2] ~= run_id then return {{5, run_id}} end
local left = redis.call('PTTL', KEYS[3])
if left ~= -2 then return {{4, left}} end
if meta[3] ~= run_id then return {{5, run_id}} end
local counters = redis.call('HGETALL', KEYS[1])
table.insert(counters, 1, 1)
return counters
""",
)

_LIFT = """
local function lift(field, number)
  local counter = tonumber(redis.call('HGET', KEYS[1], field)) or 0
  if counter < number then
    redis.call('HSET', KEYS[1], field, string.format('%.0f', number))
  end
end
"""

SYNC = Script(
    "sync",
    f"""
-- Take over counters read from others, and vote again from now on.
-- KEYS  1 fence  2 meta  3 quarantine
-- ARGV  1 run_id for which they were read  2 '1': set the floor to TIME
--       3... field, counter, field, counter, ...
-- Refuses when the node has restarted since, or is in quarantine.
{_RUN_ID}
if run_id ~= ARGV[1] then return {{5, run_id}} end
if redis.call('HGET', KEYS[2], 'run_id') ~= run_id then return {{5, run_id}} end
local left = redis.call('PTTL', KEYS[3])
if left ~= -2 then return {{4, left}} end
{_LIFT}
for i = 3, #ARGV, 2 do lift(ARGV[i], tonumber(ARGV[i + 1])) end
if ARGV[2] == '1' then
  local now = redis.call('TIME')
  lift('floor', now[1] * 1000000 + now[2])
end
redis.call('HSET', KEYS[2], 'synced', run_id)
return {{1, 0}}
""",
)

INITIALIZE = Script(
    "initialize",
    f"""
-- Let a node of a new deployment vote at once. Fences start at its TIME.
-- KEYS  1 fence  2 meta  3 quarantine
-- ARGV  1 config
{_RUN_ID}{_LIFT}
local now = redis.call('TIME')
lift('floor', now[1] * 1000000 + now[2])
redis.call('HSET', KEYS[2], 'config', ARGV[1], 'run_id', run_id, 'synced', run_id)
redis.call('DEL', KEYS[3])
return {{1, 0}}
""",
)

CLOSE = Script(
    "close",
    """
-- Take the node out of its configuration: it grants and renews no more.
-- KEYS  1 fence  2 meta  3 quarantine
-- ARGV  1 old config  2 config while closed  3 new config  4 quarantine_ms
-- Returns QUARANTINED while old locks may live, FREE after that, GRANTED if the
-- node has moved on to the new configuration already.
local config = redis.call('HGET', KEYS[2], 'config')
if config == ARGV[3] then return {1, 0} end
if config and config ~= ARGV[1] and config ~= ARGV[2] then return {6, config} end
local left = redis.call('PTTL', KEYS[3])
if config ~= ARGV[2] then
  redis.call('HSET', KEYS[2], 'config', ARGV[2])
  left = math.max(left, tonumber(ARGV[4]))
  redis.call('SET', KEYS[3], '', 'PX', left)
end
if left == -2 then return {3} end
return {4, left}
""",
)

OPEN = Script(
    "open",
    f"""
-- Let the node vote at once under a new configuration, above these fences.
-- KEYS  1 fence  2 meta  3 quarantine
-- ARGV  1 old config  2 config while closed  3 new config
--       4... field, counter, field, counter, ...
{_RUN_ID}{_LIFT}
local config = redis.call('HGET', KEYS[2], 'config')
if config and config ~= ARGV[1] and config ~= ARGV[2] and config ~= ARGV[3] then
  return {{6, config}}
end
for i = 4, #ARGV, 2 do lift(ARGV[i], tonumber(ARGV[i + 1])) end
redis.call('HSET', KEYS[2], 'config', ARGV[3], 'run_id', run_id, 'synced', run_id)
redis.call('DEL', KEYS[3])
return {{1, 0}}
""",
)

ALL_SCRIPTS = tuple(value for value in globals().values() if isinstance(value, Script))
