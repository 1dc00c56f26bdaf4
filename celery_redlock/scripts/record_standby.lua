-- List this process as a standby. Removes standbys whose time has ended.
-- Compares no view: the list is shown to operators.
--
-- KEYS  1 standbys [w]
-- ARGV  1 standby  2 ttl_ms (0: leave the list)
-- Returns {GRANTED, 0}
-- include shared/statuses.lua
-- include shared/now_ms.lua
local standbys = KEYS[1]
local standby, ttl_ms = ARGV[1], ARGV[2]

local listed = redis.call('HGETALL', standbys)
for i = 1, #listed, 2 do
  if tonumber(listed[i + 1]) <= now_ms() or listed[i] == standby then
    redis.call('HDEL', standbys, listed[i])
  end
end
if ttl_ms == '0' then return {GRANTED, 0} end
redis.call('HSET', standbys, standby, string.format('%.0f', now_ms() + ttl_ms))
redis.call('PEXPIRE', standbys, math.max(redis.call('PTTL', standbys), ttl_ms))
return {GRANTED, 0}
