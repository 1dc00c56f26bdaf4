-- Renew the ttl of locks, if all are still ours. Never creates one.
--
-- Locks of several leases can be renewed together. Then one that is not ours keeps all from
-- being renewed, and the client renews each lease by itself.
--
-- A node that does not vote yet renews locks that it still has, for clients with its view:
-- it read them from its disk, or had them when a new epoch was founded, and has granted
-- them to no other client since. A node that may have the keys of another server does not.
--
-- KEYS  1... locks [own], then meta [vote] and releases [seldom]
-- ARGV  1 view  2... token, ttl_ms of each lock
-- Returns {GRANTED, 0}; {GRANTED, 0, who} after a cancel request, see REQUEST_CANCEL;
--         {TAKEN, value, ttl_ms, ...}, {FREE}: a lock is missing; of several leases:
--         a lock is not ours; {QUARANTINED, ms}, {UNSYNCED, identity},
--         {MISCONFIGURED, config} or {EVICTS, policy}. Of one lease, TAKEN and FREE end
--         with the record, if an operator has released its locks: FORCE_RELEASE
-- include shared/statuses.lua
-- include shared/state.lua
-- include shared/proof.lua
-- include shared/owned.lua
local meta = KEYS[#KEYS - 1]
local releases = KEYS[#KEYS]
local locks = #KEYS - 2
local view = ARGV[1]

local state = read_state(meta)
local refused = refusal(state, view)
local is_member = state[1] == view and state[2] and state[4] and state[6]
if refused and (not is_member or may_be_copy()) then return refused end
local who
local ours = 0
for i = 1, locks do
  local value = redis.pcall('GET', KEYS[i])
  if type(value) ~= 'string' or not owned(value, ARGV[2 * i]) then break end
  ours = i
  who = who or string.match(value, '\ncancelled ([^\n]*)$')
end
if ours == locks then
  if refused then note_vote(meta) end
  for i = 1, locks do redis.call('PEXPIRE', KEYS[i], ARGV[2 * i + 1]) end
  return {GRANTED, 0, who}
end
if refused then return refused end
local token = ARGV[2]
if token ~= ARGV[2 * locks] then return {FREE} end
-- include shared/held.lua
local reply = taken or {FREE}
local record = redis.pcall('HGET', releases, token)
if type(record) == 'string' then reply[#reply + 1] = record end
return reply
