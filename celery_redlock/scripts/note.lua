-- Note a view: enter it as a new member, or learn that another member was replaced.
-- Within an epoch a view only grows. A node that enters a view does not vote: see SYNC.
-- From one view to that of another epoch goes only a first member of a founded epoch.
-- One that does not vote notes if another deployment is told: it was in use before.
-- A process that has never voted has refused all other views since it began, so its waits
-- count from then. All others count from now.
--
-- KEYS  1 meta [w]
-- ARGV  1 text (of the view)  2 quarantine_ms
-- Returns {GRANTED, 0}, {UNSYNCED, ''} or {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/state.lua
-- include shared/view.lua
local meta = KEYS[1]
local text, quarantine_ms = ARGV[1], ARGV[2]

local state = read_state(meta, 'started')
local config, votes, identity = state[1], state[3], state[4]
if is_without_memory(state) then return {UNSYNCED, ''} end
if config == text then return {GRANTED, 0} end
local old, new = view_of(config), view_of(text)
local member = own_member(new, identity)
if old and new and not votes and old.deployment ~= new.deployment then
  redis.call('HSET', meta, 'used', '1')
end
if not member or not old and config ~= JOINED then return {MISCONFIGURED, config} end

if old and old.deployment == new.deployment and old.epoch == new.epoch and
   old.nonce == new.nonce then
  local labels, replaced = labels_of(new), {}
  if old.settings ~= new.settings or #labels_of(old) ~= #labels then
    return {MISCONFIGURED, config}
  end
  for _, label in ipairs(labels) do
    local before, after = old.members[label], new.members[label]
    if not before or precedes(after, before) then
      return {MISCONFIGURED, config}
    end
    if precedes(before, after) then table.insert(replaced, label) end
  end
  store_view(meta, text, replaced, now_ms())
  return {GRANTED, 0}
end

local is_first = member[1] == 0
if is_first and not new.is_founded then return {MISCONFIGURED, config} end
if old and (not is_first or votes and old.deployment ~= new.deployment or
   precedes({new.epoch, new.nonce}, {old.epoch, old.nonce})) then
  return {MISCONFIGURED, config}
end
local since = now_ms()
if config == JOINED and state[8] then since = math.min(since, tonumber(state[8])) end
redis.call('HDEL', meta, 'votes', 'started') -- first: see shared/proof.lua
redis.call('HSET', meta, 'quarantine_ms', quarantine_ms, 'quarantine_until',
  string.format('%.0f', since + quarantine_ms))
store_view(meta, text, labels_of(new), since)
return {GRANTED, 0}
