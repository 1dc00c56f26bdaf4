-- Return the name of the memory of this process, and how many keys it has evicted.
local function present_names()
  return string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)'),
    string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)') or ''
end
