-- Renew the ttl of the claim of a job. Never creates a claim.
--
-- KEYS  1 claim [own]  2 meta [vote]
-- ARGV  1 view  2 job  3 ttl_ms
-- Returns {GRANTED, 0}, {FREE}, {QUARANTINED, ms}, {UNSYNCED, identity},
--         {MISCONFIGURED, config} or {EVICTS, policy}
-- include shared/statuses.lua
-- include shared/state.lua
-- include shared/claimed_by.lua
local claim, meta = KEYS[1], KEYS[2]
local view, job, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

local refused = refusal(read_state(meta), view)
if refused then return refused end
if not claimed_by(claim, job) then return {FREE} end
redis.call('PEXPIRE', claim, ttl_ms)
return {GRANTED, 0}
