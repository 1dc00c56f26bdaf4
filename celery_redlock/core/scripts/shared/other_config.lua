-- Return the node's configuration, if it is known and not the client's.
-- A node without meta has forgotten its locks as well. There is nothing to extend,
-- and what RESTORE writes gives no vote: the next ACQUIRE starts a quarantine.
local function other_config(meta, config)
  local found = redis.call('HGET', meta, 'config')
  if config ~= '' and found and found ~= config then return found end
end
