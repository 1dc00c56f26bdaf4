-- Let a node of a new deployment vote at once. Fences start at its TIME.
--
-- KEYS  1 fence  2 meta  3 quarantine
-- ARGV  1 config
-- Returns {GRANTED, 0}
-- include shared/statuses.lua
-- include shared/run_id.lua
-- include shared/now_us.lua
-- include shared/raise_counter.lua
-- include shared/admit.lua
local fence, meta, quarantine = KEYS[1], KEYS[2], KEYS[3]
local config = ARGV[1]

raise_counter(fence, 'floor', now_us())
admit(meta, quarantine, config, current_run_id())
return {GRANTED, 0}
