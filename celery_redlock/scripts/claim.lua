-- Claim a call for a job, if this node may vote and knows no other job of the call.
-- The same job again is granted again.
--
-- KEYS  1 claim [own]  2 lock [r]  3 cooldown [r]  4 meta [vote]
-- ARGV  1 view  2 job  3 holder_info  4 ttl_ms  5 check_lock (0 or 1)
--       6 check_cooldown (0 or 1)  7 together: the lines of a lock's value that name
--       several keys (empty: one key). A lock with others is not of the same call
--       8 follows: the run that has sent this job again; '0' or none: its publisher did
-- Returns {GRANTED, 0}, {TAKEN, value, ttl_ms} whose value begins with the other job,
--         {QUARANTINED, ms}, {UNSYNCED, identity}, {MISCONFIGURED, config} or
--         {EVICTS, policy}
-- include shared/statuses.lua
-- include shared/state.lua
local claim, lock, cooldown, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local view, job, holder_info, ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local check_lock, check_cooldown, together = ARGV[5], ARGV[6], ARGV[7]
local follows = ARGV[8] or '0'

local refused = refusal(read_state(meta), view)
if refused then return refused end

-- Return the value with its job, which is the fourth line, as the first line.
local function of_other_job(value)
  local found = value and
    string.match(value, '^[^\n]*\n[^\n]*\n[^\n]*\n([^\n]*)')
  if found and found ~= '' and found ~= job then
    return found .. string.match(value, '\n.*')
  end
end

-- Return the lines that name several keys: behind the seven lines about the holder.
local function keys_in(value)
  value = string.gsub(value, '\ncancelled [^\n]*$', '')
  local rest = string.match(value, '^' .. string.rep('[^\n]*\n', 6) .. '[^\n]*(.*)$')
  return rest and string.match(rest, '\n(key .*)$') or ''
end

local value = of_other_job(redis.call('GET', claim))
if value then return {TAKEN, value, redis.call('PTTL', claim)} end
value = check_lock == '1' and redis.call('GET', lock)
value = value and keys_in(value) == together and of_other_job(value)
if value then return {TAKEN, value, redis.call('PTTL', lock)} end
value = check_cooldown == '1' and of_other_job(redis.call('GET', cooldown))
if value then return {TAKEN, value, redis.call('PTTL', cooldown)} end
redis.call('SET', claim, job .. '\n' .. follows .. '\n' .. holder_info, 'PX', ttl_ms)
return {GRANTED, 0}
