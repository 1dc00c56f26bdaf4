"""What schedulers tell each other: which slots were sent, and who stands by.

No vote hangs on these, so a node that is in quarantine takes notes, too. But what
it was told before it restarted it has forgotten: it is not asked for it.
"""

from __future__ import annotations

from celery_redlock.core.scripts.script import RUN_ID, Script

__all__ = ["MARK_SLOT", "READ_SLOTS", "RECORD_SLOTS", "STANDBYS", "STAND_BY"]

RECORD_SLOTS = Script(
    "record_slots",
    """
-- Note up to which instant the slots of entries were seen to. It only grows.
-- KEYS  1 slots
-- ARGV  1 ttl_ms  2... name, instant_us, name, instant_us ('': forget the name), ...
for i = 2, #ARGV, 2 do
  local instant = tonumber(ARGV[i + 1])
  if not instant then
    redis.call('HDEL', KEYS[1], ARGV[i])
  elseif instant > (tonumber(redis.call('HGET', KEYS[1], ARGV[i])) or 0) then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return {1, 0}
""",
)

READ_SLOTS = Script(
    "read_slots",
    f"""
-- Read what RECORD_SLOTS noted, unless this node may have forgotten some of it.
-- KEYS  1 slots  2 meta  3 quarantine
-- ARGV  1 config (empty: no restart guard)
-- Returns {{1, name, instant_us, name, instant_us, ...}}
if ARGV[1] ~= '' then
  {RUN_ID}
  local meta = redis.call('HMGET', KEYS[2], 'config', 'run_id')
  if meta[1] and meta[1] ~= ARGV[1] then return {{6, meta[1]}} end
  if meta[2] ~= run_id then return {{5, run_id}} end
  local left = redis.call('PTTL', KEYS[3])
  if left ~= -2 then return {{4, left}} end
end
local slots = redis.call('HGETALL', KEYS[1])
table.insert(slots, 1, 1)
return slots
""",
)

MARK_SLOT = Script(
    "mark_slot",
    """
-- Let this task id stand for a slot, unless another one does.
-- KEYS  1 mark
-- ARGV  1 task id  2 ttl_ms
local id = redis.call('GET', KEYS[1])
if id and id ~= ARGV[1] then return {2, id, redis.call('PTTL', KEYS[1])} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, 0}
""",
)

_NOW_MS = """
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
"""

STAND_BY = Script(
    "stand_by",
    f"""
-- Be listed among those who stand by. Strikes out whose time has ended.
-- KEYS  1 standbys
-- ARGV  1 who  2 ttl_ms (0: be listed no more)
{_NOW_MS}
local listed = redis.call('HGETALL', KEYS[1])
for i = 1, #listed, 2 do
  if tonumber(listed[i + 1]) <= now_ms or listed[i] == ARGV[1] then
    redis.call('HDEL', KEYS[1], listed[i])
  end
end
if ARGV[2] == '0' then return {{1, 0}} end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now_ms + ARGV[2]))
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[2]))
return {{1, 0}}
""",
)

STANDBYS = Script(
    "standbys",
    f"""
-- Tell who stands by. Changes nothing.
-- KEYS  1 standbys
-- Returns {{1, who, who, ...}}
{_NOW_MS}
local listed, found = redis.call('HGETALL', KEYS[1]), {{1}}
for i = 1, #listed, 2 do
  if tonumber(listed[i + 1]) > now_ms then found[#found + 1] = listed[i] end
end
return found
""",
)
