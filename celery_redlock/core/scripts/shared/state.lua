-- include shared/now_us.lua
-- include shared/now_ms.lua
-- include shared/quarantine_left.lua
local JOINED = 'format 4, in no deployment' -- config of a node with only an identity

-- Read what the node knows of itself, and more fields.
local function read_state(meta, ...)
  return redis.call('HMGET', meta, 'config', 'run_id', 'votes', 'identity',
    'quarantine_until', 'replid', ...)
end

-- Return the name of the server process, and that of its data.
local function present_names()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)'),
    string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)') or ''
end

-- Tell whether the node has lost its memory: it has no identity, or one that was given
-- to an earlier process of the server, or to data that replication has replaced: a server
-- that is made a replica and promoted again has another replid, also where the other server
-- gave it back an old hash with this run_id. A part of a memory is none. What another
-- version stored is never lost.
--
-- INFO is one of the few ways for a script to learn that it runs in another process
-- than before: uptime_in_seconds is wall clock, CONFIG is not allowed. To find a known
-- run_id as plain text costs a tenth of a pattern.
local function is_without_memory(state)
  local config, run_id, identity = state[1], state[2], state[4]
  if not config then return true end
  if not string.find(config, 'format 4, ', 1, true) then return false end
  if not run_id or not identity or not state[6] then return true end
  if string.find(config, 'restart guard off', 1, true) then return false end
  local server = redis.call('INFO', 'server')
  if not string.find(server, 'run_id:' .. run_id .. '\r\n', 1, true) then return true end
  local replication = redis.call('INFO', 'replication')
  return not string.find(replication, 'master_replid:' .. state[6] .. '\r\n', 1, true)
end

-- Return why the node has no vote for a client with this view; nil if it has one.
local function refusal(state, view)
  local config, votes, identity = state[1], state[3], state[4]
  if is_without_memory(state) then return {UNSYNCED, ''} end
  if config == JOINED then return {UNSYNCED, identity} end
  if config ~= view then return {MISCONFIGURED, config} end
  if votes then return nil end
  local left = quarantine_left(state[5])
  if left > 0 then return {QUARANTINED, left} end
  return {UNSYNCED, identity}
end
