-- Let the node vote under this configuration from now on.
local function admit(meta, quarantine, config, run_id)
  redis.call('HSET', meta, 'config', config, 'run_id', run_id,
    'incarnation', run_id, 'synced', run_id)
  redis.call('DEL', quarantine)
end
