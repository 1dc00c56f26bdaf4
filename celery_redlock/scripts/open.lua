-- Let a closed node vote in the planned view, above these fences.
-- Only the server that was planned, whose old locks have ended, is opened. A node that
-- has the planned view already is left as it is.
--
-- KEYS  1 meta [w]
-- ARGV  1 closed (since CLOSE)  2 planned view  3... field, counter, ...:
--       shared/raise_counters.lua
-- Returns {GRANTED, 0}, {QUARANTINED, ms}, {UNSYNCED, ''} or {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/state.lua
-- include shared/view.lua
-- include shared/aborted.lua
-- include shared/raise_counters.lua
-- include shared/proof.lua
local meta = KEYS[1]
local closed, planned = ARGV[1], ARGV[2]

local state = read_state(meta, 'aborted')
local config, identity = state[1], state[4]
if is_without_memory(state) then return {UNSYNCED, ''} end
if config == planned then return {GRANTED, 0} end
local new = view_of(planned)
if config ~= closed or is_aborted(state[8], closed) or not own_member(new, identity) then
  return {MISCONFIGURED, config}
end
local left = quarantine_left(state[5])
if left > 0 then return {QUARANTINED, left} end
note_vote(meta)
raise_counters(meta, 3)
store_view(meta, planned, labels_of(new), now_ms())
redis.call('HSET', meta, 'votes', '1')
redis.call('HDEL', meta, 'view', 'quarantine_until', 'quarantine_ms')
return {GRANTED, 0}
