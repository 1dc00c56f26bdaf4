-- Record that a job of the call has succeeded, in place of an earlier one.
-- Compares no view: the job that succeeded sends it. CLAIM compares, and reads it.
--
-- KEYS  1 cooldown [w]
-- ARGV  1 job  2 holder_info  3 ttl_ms
-- Returns {GRANTED, 0}
-- include shared/statuses.lua
local cooldown = KEYS[1]
local job, holder_info, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

redis.call('SET', cooldown, job .. '\n0\n' .. holder_info, 'PX', ttl_ms)
return {GRANTED, 0}
