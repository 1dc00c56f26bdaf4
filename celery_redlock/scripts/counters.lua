-- Read all fence counters of a node, and for how many ms it has known each member.
-- A node that does not vote says so, and tells the same.
--
-- KEYS  1 meta [r]
-- ARGV  1 view
-- Returns {GRANTED, 0, field, number, field, number, ...},
--         {QUARANTINED, ms, field, number, ...}, {UNSYNCED, identity, field, number,
--         ...}, {EVICTS, policy, field, number, ...}, {UNSYNCED, ''} or
--         {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/state.lua
local meta = KEYS[1]
local view = ARGV[1]

local state = read_state(meta)
local reply = refusal(state, view) or {GRANTED, 0}
if reply[1] == MISCONFIGURED or reply[2] == '' then return reply end
local fields, now = redis.call('HGETALL', meta), now_ms()
for i = 1, #fields, 2 do
  local field, number = fields[i], fields[i + 1]
  if string.sub(field, 1, 6) == 'known:' then
    number = string.format('%.0f', now - number)
  elseif field ~= 'floor' and not tonumber(field) then
    number = nil
  end
  if number then
    table.insert(reply, field)
    table.insert(reply, number)
  end
end
return reply
