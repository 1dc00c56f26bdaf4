-- Read all fence counters of a node that may vote.
--
-- KEYS  1 meta
-- ARGV  1 config
-- Returns {GRANTED, field, counter, field, counter, ...}, {QUARANTINED, ms},
--         {UNSYNCED, incarnation} or {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/now_us.lua
-- include shared/now_ms.lua
-- include shared/run_id.lua
-- include shared/is_guarded.lua
-- include shared/same_process.lua
-- include shared/quarantine_left.lua
local meta = KEYS[1]
local config = ARGV[1]

local known = redis.call('HMGET', meta, 'config', 'run_id', 'incarnation', 'synced',
  'quarantine_until')
local incarnation = known[3]
if known[1] and known[1] ~= config then return {MISCONFIGURED, known[1]} end
if not known[1] or not same_process(config, known[2]) then return {UNSYNCED, ''} end
local left = quarantine_left(known[5])
if left > 0 then return {QUARANTINED, left} end
if not incarnation or known[4] ~= incarnation then
  return {UNSYNCED, incarnation or ''}
end
local fields, reply = redis.call('HGETALL', meta), {GRANTED}
for i = 1, #fields, 2 do
  if fields[i] == 'floor' or tonumber(fields[i]) then
    table.insert(reply, fields[i])
    table.insert(reply, fields[i + 1])
  end
end
return reply
