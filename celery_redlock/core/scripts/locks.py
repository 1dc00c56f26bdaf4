"""Take a lock, keep it, give it back, look at it."""

from __future__ import annotations

from celery_redlock.core.scripts.line import WAKE_FIRST
from celery_redlock.core.scripts.script import OWNED, Script

__all__ = ["ACQUIRE", "EXTEND", "INSPECT", "RAISE_FENCE", "RELEASE", "RESTORE"]

# INFO is one of the few ways for a script to learn that it runs in another
# process than before. (uptime_in_seconds is wall clock; CONFIG is not allowed.)
# A known run_id is looked for as plain text, which costs a tenth of a pattern.
ACQUIRE = Script(
    "acquire",
    f"""
-- Take the lock, if this node may vote and nobody else has it.
-- KEYS  1 lock  2 fence  3 meta  4 quarantine
-- ARGV  1 token  2 facts  3 ttl_ms  4 stripe  5 hint_us  6 hint_tolerance_us
--       7 config (empty: no restart guard)  8 quarantine_ms
-- The same token again is granted again, with the same number.
{OWNED}
if ARGV[7] ~= '' then
  local meta = redis.call('HMGET', KEYS[3], 'config', 'run_id', 'synced', 'life')
  if meta[1] and meta[1] ~= ARGV[7] then return {{6, meta[1]}} end
  local server = redis.call('INFO', 'server')
  local line = meta[2] and 'run_id:' .. meta[2] .. '\\r\\n'
  if not (line and string.find(server, line, 1, true)) then
    local run_id = string.match(server, 'run_id:(%w+)')
    redis.call('HSET', KEYS[3], 'config', ARGV[7], 'run_id', run_id, 'life', ARGV[1])
    redis.call('SET', KEYS[4], '', 'PX', ARGV[8])
    return {{4, tonumber(ARGV[8])}}
  end
  local left = redis.call('PTTL', KEYS[4])
  if left ~= -2 then return {{4, left}} end
  local life = meta[4] or meta[2]
  if meta[3] ~= life then return {{5, life}} end
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
-- Returns {{1, 0, who}} once somebody has asked us to end: see CANCEL.
{OWNED}{_SAME_CONFIG}
local value = redis.call('GET', KEYS[1])
if owned(value, ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {{1, 0, string.match(value, '\\ncancelled ([^\\n]*)$')}}
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
{OWNED}{_SAME_CONFIG}
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
{OWNED}
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
-- Let go of the lock, if it is ours, and wake a waiter. Twice is harmless.
-- KEYS  1 lock  2 line
-- ARGV  1 token, or a base with its dot  2 keep_ms (0: delete now)
-- Returns 1 if it was ours, else 0.
{OWNED}
if not owned(redis.call('GET', KEYS[1]), ARGV[1]) then return 0 end
if ARGV[2] == '0' then redis.call('DEL', KEYS[1])
else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
{WAKE_FIRST}
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
