-- Renew the ttl of the claim of a job. Never creates a claim.
--
-- KEYS  1 claim
-- ARGV  1 job  2 ttl_ms
-- Returns {GRANTED, 0} or {FREE}
-- include shared/statuses.lua
-- include shared/claimed_by.lua
local claim = KEYS[1]
local job, ttl_ms = ARGV[1], ARGV[2]

if not claimed_by(claim, job) then return {FREE} end
redis.call('PEXPIRE', claim, ttl_ms)
return {GRANTED, 0}
