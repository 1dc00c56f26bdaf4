-- Read all fence counters of a node that may vote.
--
-- KEYS  1 fence  2 meta  3 quarantine
-- ARGV  1 config
-- Returns {GRANTED, field, counter, field, counter, ...}, {QUARANTINED, ms},
--         {UNSYNCED, incarnation} or {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/run_id.lua
local fence, meta, quarantine = KEYS[1], KEYS[2], KEYS[3]
local config = ARGV[1]

local run_id = current_run_id()
local known = redis.call('HMGET', meta, 'config', 'run_id', 'synced', 'incarnation')
if known[1] and known[1] ~= config then return {MISCONFIGURED, known[1]} end
if known[2] ~= run_id then return {UNSYNCED, run_id} end
local left = redis.call('PTTL', quarantine)
if left ~= -2 then return {QUARANTINED, left} end
local incarnation = known[4] or run_id
if known[3] ~= incarnation then return {UNSYNCED, incarnation} end
local counters = redis.call('HGETALL', fence)
table.insert(counters, 1, GRANTED)
return counters
