-- Write the lock of a valid lease on a node that is without it.
-- The node's fence counter is raised with it, as if the node had granted the lock.
--
-- KEYS  1 lock  2 meta
-- ARGV  1 config  2 token  3 holder_info  4 ttl_ms  5 stripe  6 number
-- Returns {GRANTED, 0}, {TAKEN, value, ttl_ms} or {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/owned.lua
-- include shared/other_config.lua
-- include shared/raise_counter.lua
local lock, meta = KEYS[1], KEYS[2]
local config, token, holder_info, ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local stripe, number = ARGV[5], ARGV[6]

local other = other_config(meta, config)
if other then return {MISCONFIGURED, other} end
local value = redis.call('GET', lock)
if value and not owned(value, token) then
  return {TAKEN, value, redis.call('PTTL', lock)}
end
raise_counter(meta, stripe, tonumber(number))
redis.call('SET', lock, token .. '\n' .. number .. '\n' .. holder_info, 'PX', ttl_ms)
return {GRANTED, 0}
