-- Return the holder of the lock. Changes nothing.
--
-- KEYS  1 lock
-- Returns {TAKEN, value, ttl_ms} or {FREE}
-- include shared/statuses.lua
local lock = KEYS[1]

local value = redis.call('GET', lock)
if value then return {TAKEN, value, redis.call('PTTL', lock)} end
return {FREE}
