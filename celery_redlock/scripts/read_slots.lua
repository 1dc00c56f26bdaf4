-- Read what RECORD_SLOTS wrote, unless this node may have forgotten some of it.
--
-- KEYS  1 slots [r]  2 meta [vote]
-- ARGV  1 view
-- Returns {GRANTED, name, instant_us, name, instant_us, ...}, {QUARANTINED, ms},
--         {UNSYNCED, identity}, {MISCONFIGURED, config} or {EVICTS, policy}
-- include shared/statuses.lua
-- include shared/state.lua
local slots, meta = KEYS[1], KEYS[2]
local view = ARGV[1]

local refused = refusal(read_state(meta), view)
if refused then return refused end
local entries = redis.call('HGETALL', slots)
table.insert(entries, 1, GRANTED)
return entries
