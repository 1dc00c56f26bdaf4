-- Read what RECORD_SLOTS wrote, unless this node may have forgotten some of it.
--
-- KEYS  1 slots  2 meta  3 quarantine
-- ARGV  1 config (empty: no restart guard)
-- Returns {GRANTED, name, instant_us, name, instant_us, ...}, {QUARANTINED, ms},
--         {UNSYNCED, run_id} or {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/run_id.lua
local slots, meta, quarantine = KEYS[1], KEYS[2], KEYS[3]
local config = ARGV[1]

if config ~= '' then
  local run_id = current_run_id()
  local known = redis.call('HMGET', meta, 'config', 'run_id')
  if known[1] and known[1] ~= config then return {MISCONFIGURED, known[1]} end
  if known[2] ~= run_id then return {UNSYNCED, run_id} end
  local left = redis.call('PTTL', quarantine)
  if left ~= -2 then return {QUARANTINED, left} end
end
local entries = redis.call('HGETALL', slots)
table.insert(entries, 1, GRANTED)
return entries
