-- include shared/now_ms.lua
-- include shared/quarantine_left.lua
local JOINED = 'format 4, in no deployment' -- config of a node with only an identity

local LOOK_EVERY_MS = 1000 -- at the policy: one of the longer parts of INFO

-- Read what the node knows of itself, and more fields, from the eighth on.
local function read_state(meta, ...)
  local state = redis.call('HMGET', meta, 'config', 'replid', 'votes', 'identity',
    'quarantine_until', 'evicted', 'looked', ...)
  state.meta = meta
  return state
end

-- Tell whether the server has evicted a key since it got its identity. Once in a second,
-- note in state the policy by which it may evict one. A server with such a policy is looked
-- at each time, and so is a full one, which cannot store the instant. A store counts no
-- evicted keys, and has no policy.
local function has_evicted(state)
  if state[6] == '' then return false end
  local counted = '\nevicted_keys:' .. state[6] .. '\r\n'
  if not string.find(redis.call('INFO', 'stats'), counted, 1, true) then return true end
  local meta, now, looked = state.meta, now_ms(), tonumber(state[7])
  if looked and now >= looked and now - looked < LOOK_EVERY_MS then return false end
  local memory = redis.call('INFO', 'memory')
  local policy = string.match(memory, 'maxmemory_policy:([%w-]+)') or 'noeviction'
  local limit = string.match(memory, '\nmaxmemory:(%d+)') or '0'
  if policy ~= 'noeviction' and limit ~= '0' then state.evicts = policy end
  if not state.evicts then
    redis.pcall('HSET', meta, 'looked', string.format('%.0f', now))
  end
  return false
end

-- Tell whether the node has lost its memory: it has no identity, or one that was given
-- to an earlier process of the server, or to data that replication has replaced. A server
-- makes up a replid when it starts, and another one when it is promoted. Only a replica may
-- have one that was in use before: that of its master, or of the file that it has loaded.
-- So has a server that has evicted a key: it may have been a lock. A part of a memory is
-- none. What another version stored is never lost.
--
-- INFO is one of the few ways for a script to learn that it runs in another process
-- than before: uptime_in_seconds is wall clock, CONFIG is not allowed. To find a known
-- value as plain text costs a tenth of a pattern.
local function is_without_memory(state)
  local config, replid, identity = state[1], state[2], state[4]
  if not config then return true end
  if not string.find(config, 'format 4, ', 1, true) then return false end
  if not replid or not identity or not state[6] then return true end
  local evicted = has_evicted(state)
  if string.find(config, 'restart guard off', 1, true) then return false end
  if evicted then return true end
  local replication = redis.call('INFO', 'replication')
  return not string.find(replication, '\nmaster_replid:' .. replid .. '\r\n', 1, true) or
    not string.find(replication, 'role:master\r\n', 1, true)
end

-- Return why the node has no vote for a client with this view; nil if it has one.
local function refusal(state, view)
  local config, votes, identity = state[1], state[3], state[4]
  if is_without_memory(state) then return {UNSYNCED, ''} end
  if state.evicts then return {EVICTS, state.evicts} end
  if config == JOINED then return {UNSYNCED, identity} end
  if config ~= view then return {MISCONFIGURED, config} end
  if votes then return nil end
  local left = quarantine_left(state[5])
  if left > 0 then return {QUARANTINED, left} end
  return {UNSYNCED, identity}
end
