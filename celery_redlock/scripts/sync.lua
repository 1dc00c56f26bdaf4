-- Let a node vote that others have confirmed, above their fence counters.
-- Refused while its quarantine lasts, and when it has another view or identity by now.
--
-- KEYS  1 meta [w]
-- ARGV  1 view  2 identity  3 set_floor ('1': floor to TIME and tolerance_us, above
--       every hint that was accepted)  4 tolerance_us  5... field, counter, ...
-- Returns {GRANTED, 0}, {QUARANTINED, ms}, {UNSYNCED, identity},
--         {MISCONFIGURED, config} or {EVICTS, policy}
-- include shared/statuses.lua
-- include shared/state.lua
-- include shared/raise_counters.lua
-- include shared/proof.lua
local meta = KEYS[1]
local view, identity = ARGV[1], ARGV[2]
local set_floor, tolerance_us = ARGV[3], ARGV[4]

local state = read_state(meta)
local refused = refusal(state, view)
if state[4] ~= identity then return refused or {UNSYNCED, state[4]} end
if not refused then return {GRANTED, 0} end
if refused[1] ~= UNSYNCED or refused[2] == '' or state[1] == JOINED then
  return refused
end
note_vote(meta)
raise_counters(meta, 5)
if set_floor == '1' then raise_counter(meta, 'floor', now_us() + tolerance_us) end
redis.call('HSET', meta, 'votes', '1')
redis.call('HDEL', meta, 'quarantine_until', 'quarantine_ms')
return {GRANTED, 0}
