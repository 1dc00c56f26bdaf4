-- Claim a call for a job, unless another job of the call is known already.
-- The same job again is granted again.
--
-- KEYS  1 claim  2 lock  3 cooldown
-- ARGV  1 job  2 holder_info  3 ttl_ms  4 check_lock (0 or 1)
--       5 check_cooldown (0 or 1)
-- Returns {GRANTED, 0}, or {TAKEN, value, ttl_ms} whose value begins with the other job
-- include shared/statuses.lua
local claim, lock, cooldown = KEYS[1], KEYS[2], KEYS[3]
local job, holder_info, ttl_ms = ARGV[1], ARGV[2], ARGV[3]
local check_lock, check_cooldown = ARGV[4], ARGV[5]

-- Return the value with its job, which is the fourth line, as the first line.
local function of_other_job(value)
  local found = value and
    string.match(value, '^[^\n]*\n[^\n]*\n[^\n]*\n([^\n]*)')
  if found and found ~= '' and found ~= job then
    return found .. string.match(value, '\n.*')
  end
end

local value = of_other_job(redis.call('GET', claim))
if value then return {TAKEN, value, redis.call('PTTL', claim)} end
value = check_lock == '1' and of_other_job(redis.call('GET', lock))
if value then return {TAKEN, value, redis.call('PTTL', lock)} end
value = check_cooldown == '1' and of_other_job(redis.call('GET', cooldown))
if value then return {TAKEN, value, redis.call('PTTL', cooldown)} end
redis.call('SET', claim, job .. '\n0\n' .. holder_info, 'PX', ttl_ms)
return {GRANTED, 0}
