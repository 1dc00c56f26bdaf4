-- Remember on a planned member that the reconfiguration is aborted. It is never opened.
-- Refused where it was opened: the member may be closed for a later one by now.
--
-- KEYS  1 meta [w]
-- ARGV  1 closed (of CLOSE)  2 planned view
-- Returns {GRANTED, 0}, {UNSYNCED, ''} or {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/state.lua
-- include shared/view.lua
-- include shared/aborted.lua
local meta = KEYS[1]
local closed, planned = ARGV[1], ARGV[2]

local state = read_state(meta, 'aborted', 'view')
local new = view_of(planned)
local present = view_of(state[1] or '') or view_of(state[9] or '')
if is_without_memory(state) then return {UNSYNCED, ''} end
if not own_member(new, state[4]) or present and present.deployment == new.deployment
   and not precedes({present.epoch, present.nonce}, {new.epoch, new.nonce}) then
  return {MISCONFIGURED, state[1]}
end
mark_aborted(meta, state[8], closed)
return {GRANTED, 0}
