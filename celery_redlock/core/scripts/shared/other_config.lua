-- Return the node's configuration, if it is not the client's; '' if it has none.
local function other_config(meta, config)
  local found = redis.call('HGET', meta, 'config') or ''
  if found ~= config then return found end
end
