-- Let a closed node vote again in the view that it had, after an abort.
--
-- KEYS  1 meta [w]
-- ARGV  1 closed (of CLOSE)  2... field, counter, ...: it votes above these fences;
--       shared/raise_counters.lua
-- Returns {GRANTED, 0}, {FREE} if it was not closed for this reconfiguration, or
--         {UNSYNCED, ''}
-- include shared/statuses.lua
-- include shared/state.lua
-- include shared/aborted.lua
-- include shared/raise_counters.lua
-- include shared/proof.lua
local meta = KEYS[1]
local closed = ARGV[1]

local state = read_state(meta, 'view', 'aborted')
if is_without_memory(state) then return {UNSYNCED, ''} end
if state[1] ~= closed or not state[8] then return {FREE} end
note_vote(meta)
mark_aborted(meta, state[9], closed)
raise_counters(meta, 2)
redis.call('HSET', meta, 'config', state[8], 'votes', '1')
redis.call('HDEL', meta, 'view', 'quarantine_until', 'quarantine_ms')
return {GRANTED, 0}
