-- Release the claim of a job. Twice is harmless.
-- Compares no view: it acts on the claim of one job. To compare would only leave claims
-- behind.
--
-- KEYS  1 claim
-- ARGV  1 job
-- Returns {GRANTED, 0} or {FREE}
-- include shared/statuses.lua
-- include shared/claimed_by.lua
local claim = KEYS[1]
local job = ARGV[1]

if not claimed_by(claim, job) then return {FREE} end
redis.call('DEL', claim)
return {GRANTED, 0}
