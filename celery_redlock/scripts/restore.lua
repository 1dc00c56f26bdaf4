-- Write the locks of a valid lease on a node that votes and is without one of them.
-- The node's fence counters are raised with it, as if the node had granted the locks.
-- A cancel request that the node has stays.
--
-- KEYS  1... locks [own], then meta [vote, stripes]
-- ARGV  1 view  2 token  3 holder_info  4 ttl_ms  5 number
--       6... stripes: the one of each lock
-- Returns {GRANTED, 0}, {TAKEN, value, ttl_ms, ...}, {QUARANTINED, ms},
--         {UNSYNCED, identity}, {MISCONFIGURED, config} or {EVICTS, policy}
-- include shared/statuses.lua
-- include shared/state.lua
-- include shared/owned.lua
-- include shared/raise_counter.lua
local meta = KEYS[#KEYS]
local locks = #KEYS - 1
local view, token, holder_info, ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local number = ARGV[5]

local refused = refusal(read_state(meta), view)
if refused then return refused end
-- include shared/held.lua
if taken then return taken end
local asked = mine and string.match(mine, '\ncancelled [^\n]*$') or ''
local value = token .. '\n' .. number .. '\n' .. holder_info .. asked
for i = 1, locks do
  raise_counter(meta, ARGV[i + 5], tonumber(number))
  redis.call('SET', KEYS[i], value, 'PX', ttl_ms)
end
return {GRANTED, 0}
