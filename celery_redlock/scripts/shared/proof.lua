-- include shared/now_ms.lua

-- Note that this process votes, where no key can hold it and no flush removes it: as the
-- number of calls of a command that nothing else uses. Call it before the script writes:
-- where the command is denied or renamed the script ends here, and what it has written by
-- then stays.
local function note_vote(meta)
  redis.call('HSTRLEN', meta, 'votes')
end

-- Tell whether the keys may be those of another server, which lives on: replication
-- brought them, or cannot be excluded.
local function may_be_copy()
  local replication = redis.call('INFO', 'replication')
  return not string.find(replication, 'role:master\r\n', 1, true) or
    not string.find(replication, 'second_repl_offset:-1\r\n', 1, true)
end

-- What a process has counted that cannot prove that it has never voted: our mark, another
-- start of the counters (in 6.2 without the name of the subcommand), and replication.
local DISPROOFS = {'hstrlen', 'config|resetstat', 'config', 'replicaof', 'slaveof',
  'failover', 'psync', 'sync'}

-- Return when this process began, in ms since 1970, if it proves that it has never voted:
-- then it has forgotten nothing of its own, and what an earlier process granted has ended
-- one quarantine later. Return nil if it does not: what cannot be read is not proven.
local function proven_start()
  local counted = redis.call('INFO', 'commandstats')
  -- It has counted what this script has called just now.
  if not string.find(counted, 'cmdstat_hmget:', 1, true) then return nil end
  for _, command in ipairs(DISPROOFS) do
    if string.find(counted, 'cmdstat_' .. command .. ':', 1, true) then return nil end
  end
  if may_be_copy() then return nil end
  local seconds = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')
  -- Both are rounded down, so the process may be a second younger.
  return seconds and now_ms() - math.max(0, seconds - 1) * 1000
end
