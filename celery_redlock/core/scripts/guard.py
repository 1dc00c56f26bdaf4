"""Admit a node to the vote, and move it from one configuration to another."""

from __future__ import annotations

from celery_redlock.core.scripts.script import RUN_ID, Script

__all__ = ["CLOSE", "COUNTERS", "INITIALIZE", "OPEN", "SYNC"]

COUNTERS = Script(
    "counters",
    f"""
-- Read all fence counters of a node that may vote.
-- KEYS  1 fence  2 meta  3 quarantine
-- ARGV  1 config
-- Returns {{1, field, counter, field, counter, ...}}
{RUN_ID}
local meta = redis.call('HMGET', KEYS[2], 'config', 'run_id', 'synced', 'life')
if meta[1] and meta[1] ~= ARGV[1] then return {{6, meta[1]}} end
if meta[2] ~= run_id then return {{5, run_id}} end
local left = redis.call('PTTL', KEYS[3])
if left ~= -2 then return {{4, left}} end
local life = meta[4] or run_id
if meta[3] ~= life then return {{5, life}} end
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

_ADMIT = """
local function admit(config, run_id)
  redis.call('HSET', KEYS[2], 'config', config, 'run_id', run_id,
    'life', run_id, 'synced', run_id)
  redis.call('DEL', KEYS[3])
end
"""

SYNC = Script(
    "sync",
    f"""
-- Take over counters read from others, and vote again from now on.
-- KEYS  1 fence  2 meta  3 quarantine
-- ARGV  1 life for which they were read  2 '1': set the floor to TIME
--       3... field, counter, field, counter, ...
-- Refuses when the node has lost its memory once more since, or is in quarantine.
{RUN_ID}
local meta = redis.call('HMGET', KEYS[2], 'run_id', 'life')
local life = meta[2] or run_id
if meta[1] ~= run_id or life ~= ARGV[1] then return {{5, life}} end
local left = redis.call('PTTL', KEYS[3])
if left ~= -2 then return {{4, left}} end
{_LIFT}
for i = 3, #ARGV, 2 do lift(ARGV[i], tonumber(ARGV[i + 1])) end
if ARGV[2] == '1' then
  local now = redis.call('TIME')
  lift('floor', now[1] * 1000000 + now[2])
end
redis.call('HSET', KEYS[2], 'synced', life)
return {{1, 0}}
""",
)

INITIALIZE = Script(
    "initialize",
    f"""
-- Let a node of a new deployment vote at once. Fences start at its TIME.
-- KEYS  1 fence  2 meta  3 quarantine
-- ARGV  1 config
{RUN_ID}{_LIFT}
local now = redis.call('TIME')
lift('floor', now[1] * 1000000 + now[2])
{_ADMIT}admit(ARGV[1], run_id)
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
{RUN_ID}{_LIFT}
local config = redis.call('HGET', KEYS[2], 'config')
if config and config ~= ARGV[1] and config ~= ARGV[2] and config ~= ARGV[3] then
  return {{6, config}}
end
for i = 4, #ARGV, 2 do lift(ARGV[i], tonumber(ARGV[i + 1])) end
{_ADMIT}admit(ARGV[3], run_id)
return {{1, 0}}
""",
)
