-- Let a closed node vote at once under the new configuration, above these fences.
-- Only a node that is closed for it, and whose old locks have ended, is opened. A node
-- that has the new configuration already is left as it is, also in quarantine.
--
-- KEYS  1 meta
-- ARGV  1 closed config (since CLOSE)  2 new config  3... field, counter, ...
-- Returns {GRANTED, 0}, {QUARANTINED, ms} or {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/now_us.lua
-- include shared/now_ms.lua
-- include shared/run_id.lua
-- include shared/quarantine_left.lua
-- include shared/raise_counter.lua
-- include shared/admit.lua
local meta = KEYS[1]
local closed, new = ARGV[1], ARGV[2]

local known = redis.call('HMGET', meta, 'config', 'quarantine_until')
local config, left = known[1] or '', quarantine_left(known[2])
if config == new then return {GRANTED, 0} end
if config ~= closed then return {MISCONFIGURED, config} end
if left > 0 then return {QUARANTINED, left} end
for i = 3, #ARGV, 2 do raise_counter(meta, ARGV[i], tonumber(ARGV[i + 1])) end
admit(meta, new, current_run_id())
return {GRANTED, 0}
