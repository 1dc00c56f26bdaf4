-- Let the node vote at once under a new configuration, above these fences.
--
-- KEYS  1 fence  2 meta  3 quarantine
-- ARGV  1 old config  2 closed config (since CLOSE)  3 new config
--       4... field, counter, field, counter, ...
-- Returns {GRANTED, 0} or {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/run_id.lua
-- include shared/raise_counter.lua
-- include shared/admit.lua
local fence, meta, quarantine = KEYS[1], KEYS[2], KEYS[3]
local old, closed, new = ARGV[1], ARGV[2], ARGV[3]

local config = redis.call('HGET', meta, 'config')
if config and config ~= old and config ~= closed and config ~= new then
  return {MISCONFIGURED, config}
end
for i = 4, #ARGV, 2 do raise_counter(fence, ARGV[i], tonumber(ARGV[i + 1])) end
admit(meta, quarantine, new, current_run_id())
return {GRANTED, 0}
