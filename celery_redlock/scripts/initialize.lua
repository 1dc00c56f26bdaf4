-- Let a node without view vote at once in a new deployment, above its TIME.
-- A server that has replaced a member is no first member: it has to wait, see SYNC.
--
-- KEYS  1 meta [w]
-- ARGV  1 view  2 hint_us  3 tolerance_us
-- Returns {GRANTED, 0}, {QUARANTINED, ms}, {UNSYNCED, identity},
--         {MISCONFIGURED, config} or {EVICTS, policy}
-- include shared/statuses.lua
-- include shared/state.lua
-- include shared/view.lua
-- include shared/raise_counter.lua
-- include shared/proof.lua
local meta = KEYS[1]
local view, hint_us, tolerance_us = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local state = read_state(meta)
local refused = refusal(state, view)
if not refused then return {GRANTED, 0} end
local new = view_of(view)
local member = own_member(new, state[4])
if state[1] ~= JOINED or refused[2] == '' or not member or member[1] ~= 0 then
  return refused
end
note_vote(meta)
-- Above every hint that was accepted before, and the same on all nodes.
local floor = now_us()
if math.abs(hint_us - floor) <= tolerance_us then floor = hint_us + tolerance_us end
raise_counter(meta, 'floor', floor + tolerance_us)
store_view(meta, view, labels_of(new), now_ms())
redis.call('HSET', meta, 'votes', '1')
return {GRANTED, 0}
