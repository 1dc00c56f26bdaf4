-- Raise the counter to the fence of a grant, but only while the lock is ours.
--
-- KEYS  1 lock  2 meta
-- ARGV  1 token  2 holder_info  3 stripe  4 number
-- Returns {GRANTED, number} or {FREE}
-- include shared/statuses.lua
-- include shared/owned.lua
local lock, meta = KEYS[1], KEYS[2]
local token, holder_info, stripe, number = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if not owned(redis.call('GET', lock), token) then return {FREE} end
local counter = tonumber(redis.call('HGET', meta, stripe)) or 0
if counter < tonumber(number) then
  redis.call('HSET', meta, stripe, number)
  redis.call('SET', lock, token .. '\n' .. number .. '\n' .. holder_info, 'KEEPTTL')
end
return {GRANTED, tonumber(number)}
