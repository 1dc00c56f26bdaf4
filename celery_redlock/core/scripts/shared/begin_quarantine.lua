-- Note that this node has lost its memory, and since when.
local function begin_quarantine(meta, config, run_id, incarnation, quarantine_ms)
  redis.call('HSET', meta, 'config', config, 'run_id', run_id,
    'incarnation', incarnation,
    'quarantine_until', string.format('%.0f', now_ms() + quarantine_ms))
end
