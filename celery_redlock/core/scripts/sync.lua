-- Take over the counters of other nodes, and vote again from now on.
-- Refused when the node has lost its memory once more since, or is in quarantine.
-- Without the restart guard this also gives a node its configuration.
--
-- KEYS  1 meta
-- ARGV  1 config  2 incarnation for which they were read  3 set_floor ('1': floor to
--       TIME and tolerance_us, above every hint that was accepted)  4 tolerance_us
--       5... field, counter, field, counter, ...
-- Returns {GRANTED, 0}, {QUARANTINED, ms}, {UNSYNCED, incarnation} or
--         {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/run_id.lua
-- include shared/now_us.lua
-- include shared/now_ms.lua
-- include shared/is_guarded.lua
-- include shared/same_process.lua
-- include shared/quarantine_left.lua
-- include shared/raise_counter.lua
-- include shared/admit.lua
local meta = KEYS[1]
local config, incarnation = ARGV[1], ARGV[2]
local set_floor, tolerance_us = ARGV[3], ARGV[4]

local known = redis.call('HMGET', meta, 'config', 'run_id', 'incarnation',
  'quarantine_until')
local present = known[3] or ''
if known[1] and known[1] ~= config then return {MISCONFIGURED, known[1]} end
if present ~= incarnation then return {UNSYNCED, present} end
if not known[1] then
  if is_guarded(config) then return {UNSYNCED, present} end
  admit(meta, config, current_run_id())
elseif not same_process(config, known[2]) then
  return {UNSYNCED, present}
else
  local left = quarantine_left(known[4])
  if left > 0 then return {QUARANTINED, left} end
  redis.call('HSET', meta, 'synced', incarnation)
  redis.call('HDEL', meta, 'quarantine_until')
end
for i = 5, #ARGV, 2 do raise_counter(meta, ARGV[i], tonumber(ARGV[i + 1])) end
if set_floor == '1' then raise_counter(meta, 'floor', now_us() + tolerance_us) end
return {GRANTED, 0}
