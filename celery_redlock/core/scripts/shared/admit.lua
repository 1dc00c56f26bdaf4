-- Let the node vote under this configuration from now on.
local function admit(meta, config, run_id)
  redis.call('HSET', meta, 'config', config, 'run_id', run_id,
    'incarnation', run_id, 'synced', run_id)
  redis.call('HDEL', meta, 'quarantine_until')
end
