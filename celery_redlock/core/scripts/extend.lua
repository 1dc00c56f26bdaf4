-- Renew the ttl of the lock, if it is still ours. Never creates it.
--
-- KEYS  1 lock  2 fence  3 meta
-- ARGV  1 config (empty: no restart guard)  2 token  3 ttl_ms
-- Returns {GRANTED, 0}; {GRANTED, 0, who} after a cancel request, see REQUEST_CANCEL;
--         {TAKEN, value, ttl_ms}, {FREE} or {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/owned.lua
-- include shared/other_config.lua
local lock, meta = KEYS[1], KEYS[3]
local config, token, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

local other = other_config(meta, config)
if other then return {MISCONFIGURED, other} end
local value = redis.call('GET', lock)
if owned(value, token) then
  redis.call('PEXPIRE', lock, ttl_ms)
  return {GRANTED, 0, string.match(value, '\ncancelled ([^\n]*)$')}
end
if value then return {TAKEN, value, redis.call('PTTL', lock)} end
return {FREE}
