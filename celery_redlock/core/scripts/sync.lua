-- Take over the counters of other nodes, and vote again from now on.
-- Refused when the node has lost its memory once more since, or is in quarantine.
--
-- KEYS  1 fence  2 meta  3 quarantine
-- ARGV  1 incarnation for which they were read  2 set_floor ('1': floor to TIME)
--       3... field, counter, field, counter, ...
-- Returns {GRANTED, 0}, {QUARANTINED, ms} or {UNSYNCED, incarnation}
-- include shared/statuses.lua
-- include shared/run_id.lua
-- include shared/now_us.lua
-- include shared/raise_counter.lua
local fence, meta, quarantine = KEYS[1], KEYS[2], KEYS[3]
local incarnation, set_floor = ARGV[1], ARGV[2]

local run_id = current_run_id()
local known = redis.call('HMGET', meta, 'run_id', 'incarnation')
local present = known[2] or run_id
if known[1] ~= run_id or present ~= incarnation then return {UNSYNCED, present} end
local left = redis.call('PTTL', quarantine)
if left ~= -2 then return {QUARANTINED, left} end
for i = 3, #ARGV, 2 do raise_counter(fence, ARGV[i], tonumber(ARGV[i + 1])) end
if set_floor == '1' then raise_counter(fence, 'floor', now_us()) end
redis.call('HSET', meta, 'synced', incarnation)
return {GRANTED, 0}
