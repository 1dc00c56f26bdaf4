-- Let a node of a new deployment vote at once. Fences start above its TIME.
-- A node of the older format 1 is taken over: its fences were below that, too.
--
-- KEYS  1 meta
-- ARGV  1 config  2 hint_us  3 tolerance_us
-- Returns {GRANTED, 0} or {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/run_id.lua
-- include shared/now_us.lua
-- include shared/raise_counter.lua
-- include shared/admit.lua
local meta = KEYS[1]
local config, hint_us, tolerance_us = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local found = redis.call('HGET', meta, 'config')
if found and found ~= config and not string.find(found, '^protocol 1,') then
  return {MISCONFIGURED, found}
end
-- Above every hint that was accepted before, and the same on all nodes.
local floor = now_us()
if math.abs(hint_us - floor) <= tolerance_us then floor = hint_us + tolerance_us end
raise_counter(meta, 'floor', floor + tolerance_us)
admit(meta, config, current_run_id())
return {GRANTED, 0}
