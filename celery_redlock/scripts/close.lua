-- Take a member out of its view, or a server without view out of use, for a planned
-- view. It neither grants nor renews, and remembers the view that it had.
--
-- KEYS  1 meta [w]
-- ARGV  1 old view  2 closed: the prefix and the planned view  3 planned view
--       4 quarantine_ms
-- Returns {QUARANTINED, ms} while old locks may live, {FREE} after that, {GRANTED, 0}
--         if the node has the planned view already, {UNSYNCED, identity} or
--         {MISCONFIGURED, config} if it is not closed
-- include shared/statuses.lua
-- include shared/state.lua
-- include shared/present_names.lua
-- include shared/view.lua
-- include shared/aborted.lua
local meta = KEYS[1]
local old, closed, planned, quarantine_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local state = read_state(meta, 'view', 'aborted')
local config, votes, identity = state[1], state[3], state[4]
if is_without_memory(state) then return {UNSYNCED, ''} end
if config == planned then return {GRANTED, 0} end
if config ~= closed then
  local is_free = config == JOINED or
    not state[8] and is_aborted(state[9], config)
  if is_aborted(state[9], closed) then return {MISCONFIGURED, 'aborted'} end
  if config == old then
    if not votes then return {UNSYNCED, identity} end
    -- Without the guard, the names may be those of an earlier process.
    local replid, evicted = present_names()
    redis.call('HSET', meta, 'config', closed, 'view', old, 'replid', replid,
      'evicted', evicted, 'quarantine_ms', quarantine_ms,
      'quarantine_until', string.format('%.0f', now_ms() + quarantine_ms))
    redis.call('HDEL', meta, 'votes')
    return {QUARANTINED, tonumber(quarantine_ms)}
  end
  if not is_free or not own_member(view_of(planned), identity) then
    return {MISCONFIGURED, config}
  end
  redis.call('HSET', meta, 'config', closed)
  return {FREE}
end
if is_aborted(state[9], closed) then return {MISCONFIGURED, 'aborted'} end
local left = quarantine_left(state[5])
if left == 0 then return {FREE} end
return {QUARANTINED, left}
