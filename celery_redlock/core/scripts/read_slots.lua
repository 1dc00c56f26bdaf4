-- Read what RECORD_SLOTS wrote, unless this node may have forgotten some of it.
--
-- KEYS  1 slots  2 meta
-- ARGV  1 config
-- Returns {GRANTED, name, instant_us, name, instant_us, ...}, {QUARANTINED, ms},
--         {UNSYNCED, ''} or {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/now_us.lua
-- include shared/now_ms.lua
-- include shared/run_id.lua
-- include shared/is_guarded.lua
-- include shared/same_process.lua
-- include shared/quarantine_left.lua
local slots, meta = KEYS[1], KEYS[2]
local config = ARGV[1]

local known = redis.call('HMGET', meta, 'config', 'run_id', 'quarantine_until')
if known[1] and known[1] ~= config then return {MISCONFIGURED, known[1]} end
if not known[1] or not same_process(config, known[2]) then return {UNSYNCED, ''} end
local left = quarantine_left(known[3])
if left > 0 then return {QUARANTINED, left} end
local entries = redis.call('HGETALL', slots)
table.insert(entries, 1, GRANTED)
return entries
