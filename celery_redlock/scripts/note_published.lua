-- Number a call that its publisher has sent, unless it has started or ended already.
-- If it is to replace the running call, ask the holder of the lock to end.
-- Compares no view: a call ends only for another one that is in the broker, and ACQUIRE
-- decides when that one runs.
--
-- KEYS  1 register [r]  2 published [w]  3 lock [w]
-- ARGV  1 id  2 expires (seconds since 1970; 0: never)  3 ttl_ms
--       4 who: the call, one line, if it replaces the running call; else empty
-- Returns {GRANTED, number}; the number is 0 if nothing was noted
-- include shared/statuses.lua
-- include shared/now_us.lua
-- include shared/published.lua
-- include shared/ask_to_end.lua
local register, published, lock = KEYS[1], KEYS[2], KEYS[3]
local id, expires, ttl_ms, who = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

if redis.call('ZSCORE', published, id) or
   redis.call('ZSCORE', published, 'ended ' .. id) then
  return {GRANTED, 0}
end
-- Above all numbers that were given before, also after the clock was set back.
local number = now_us()
local value = redis.call('GET', register)
if value then
  local known, started = string.match(value, '^[^\n]*\n(%d+)\n[^\n]*\n%a+\n?(%d*)$')
  number = math.max(number, (tonumber(known) or 0) + 1, (tonumber(started) or 0) + 1)
end
local latest = redis.call('ZREVRANGE', published, 0, 0, 'WITHSCORES')
number = math.max(number, tonumber(latest[2] or 0) + 1)
redis.call('ZADD', published, string.format('%.0f', number), id)
if tonumber(expires) > 0 then
  redis.call('ZADD', published, expires, 'expires ' .. id)
end
local oldest = string.format('%.0f', number - ttl_ms * 1000)
redis.call('ZREMRANGEBYSCORE', published, LEAST_NUMBER, oldest)
redis.call('PEXPIRE', published, math.max(ttl_ms, redis.call('PTTL', published)))
local held = who ~= '' and redis.call('GET', lock)
local holder = held and string.match(held, '^[^\n]*\n[^\n]*\n[^\n]*\n([^\n]*)')
if holder and holder ~= id then ask_to_end(lock, held, who) end
return {GRANTED, number}
