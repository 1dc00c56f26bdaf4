-- Raise the counters to the fence of a grant, but only while all locks are ours.
-- A cancel request stays: it may have come before, see REQUEST_CANCEL.
-- Compares no view: it acts on a random token, which is only where it was granted.
--
-- KEYS  1... locks [own], then meta [stripes]
-- ARGV  1 token  2 holder_info  3 number  4... stripes: the one of each lock
-- Returns {GRANTED, number} or {FREE}
-- include shared/statuses.lua
-- include shared/owned.lua
local meta = KEYS[#KEYS]
local locks = #KEYS - 1
local token, holder_info, number = ARGV[1], ARGV[2], ARGV[3]

-- include shared/held.lua
if ours < locks then return {FREE} end
local is_raised = false
for i = 1, locks do
  local counter = tonumber(redis.call('HGET', meta, ARGV[i + 3])) or 0
  if counter < tonumber(number) then
    redis.call('HSET', meta, ARGV[i + 3], number)
    is_raised = true
  end
end
if is_raised then
  local asked = string.match(mine, '\ncancelled [^\n]*$') or ''
  local value = token .. '\n' .. number .. '\n' .. holder_info .. asked
  for i = 1, locks do redis.call('SET', KEYS[i], value, 'KEEPTTL') end
end
return {GRANTED, tonumber(number)}
