-- Give an identity to a server that has lost its memory, or that is to forget its view.
-- Tell what the node knows of itself. Never send the same random part twice.
-- A process that proves that it has never voted notes since when it runs: see NOTE.
-- Instants that are too far ahead, of a clock that was ahead for a moment, begin anew.
-- Compares no view: it tells the view of the node, and forgets only the one that it is told.
--
-- KEYS  1 meta [w]
-- ARGV  1 random: the first part of the identity
--       2 forget: the view that the node is to forget, '' for none
-- Returns {GRANTED, 0, config, identity, votes (0 or 1), view that it left, aborted};
--         {UNSYNCED, ''} for a replica, which gets no identity
-- include shared/statuses.lua
-- include shared/state.lua
-- include shared/present_names.lua
-- include shared/proof.lua
local meta = KEYS[1]
local random, forget = ARGV[1], ARGV[2]

local state = read_state(meta, 'view', 'aborted')
if is_without_memory(state) or state[1] == forget then
  -- A replica that takes writes: those of its master may replace its locks later.
  -- A client that connects to it sees this, and one that is connected does not.
  if string.find(redis.call('INFO', 'replication'), 'role:slave', 1, true) then
    return {UNSYNCED, ''}
  end
  -- Servers that get the same message have different names.
  local replid, evicted = present_names()
  local identity = random .. string.sub(replid, 1, 8)
  local started = proven_start()
  redis.call('HDEL', meta, 'votes', 'quarantine_until', 'quarantine_ms', 'view', 'aborted',
    'started', 'looked', 'used')
  redis.call('HSET', meta, 'config', JOINED, 'replid', replid, 'evicted', evicted,
    'identity', identity)
  if started then
    redis.call('HSET', meta, 'started', string.format('%.0f', started))
  end
  return {GRANTED, 0, JOINED, identity, 0, '', ''}
end
local now, longest = now_ms(), tonumber(redis.call('HGET', meta, 'quarantine_ms'))
if state[5] and longest and tonumber(state[5]) > now + longest then
  redis.call('HSET', meta, 'quarantine_until', string.format('%.0f', now + longest))
end
local fields = redis.call('HGETALL', meta)
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 6) == 'known:' and tonumber(fields[i + 1]) > now then
    redis.call('HSET', meta, fields[i], string.format('%.0f', now))
  end
end
return {GRANTED, 0, state[1], state[4] or '', state[3] and 1 or 0,
  state[8] or '', state[9] or ''}
