-- Renew the ttl of the lock, if it is still ours. Never creates it.
-- A node that has lost its memory is quarantined from now on; it is without the lock.
--
-- KEYS  1 lock  2 meta
-- ARGV  1 config  2 token  3 ttl_ms  4 quarantine_ms
-- Returns {GRANTED, 0}; {GRANTED, 0, who} after a cancel request, see REQUEST_CANCEL;
--         {TAKEN, value, ttl_ms}, {FREE} or {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/now_us.lua
-- include shared/now_ms.lua
-- include shared/owned.lua
-- include shared/run_id.lua
-- include shared/is_guarded.lua
-- include shared/begin_quarantine.lua
-- include shared/other_config.lua
local lock, meta = KEYS[1], KEYS[2]
local config, token, ttl_ms, quarantine_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local other = other_config(meta, config)
if other == '' and is_guarded(config) then
  begin_quarantine(meta, config, current_run_id(), token, quarantine_ms)
elseif other and other ~= '' then
  return {MISCONFIGURED, other}
end
local value = redis.call('GET', lock)
if owned(value, token) then
  redis.call('PEXPIRE', lock, ttl_ms)
  return {GRANTED, 0, string.match(value, '\ncancelled ([^\n]*)$')}
end
if value then return {TAKEN, value, redis.call('PTTL', lock)} end
return {FREE}
