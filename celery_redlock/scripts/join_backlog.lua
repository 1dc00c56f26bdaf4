-- Join the backlog of a key, or keep one's place in it, and tell the place. A call that
-- has not joined again by its deadline is taken out: it was purged, or is lost.
-- Compares no view: the backlog only says when to try, and ACQUIRE decides.
--
-- KEYS  1 backlog [w, large]  2 returns [w, large]  3 pace [r]
-- ARGV  1 task_id  2 since (µs since 1970)  3 within_us: until its deadline
-- Returns {GRANTED, before, waiting, run_us}; run_us is 0 where no run has ended
-- include shared/statuses.lua
-- include shared/now_us.lua
-- include shared/read_pace.lua
local backlog, returns, pace = KEYS[1], KEYS[2], KEYS[3]
local task_id, since, within_us = ARGV[1], ARGV[2], tonumber(ARGV[3])

local now = now_us()
local gone = redis.call('ZRANGEBYSCORE', returns, '-inf', string.format('%.0f', now),
  'LIMIT', 0, 100)
for _, id in ipairs(gone) do
  redis.call('ZREM', backlog, id)
  redis.call('ZREM', returns, id)
end
local _, run_us = read_pace(pace)
redis.call('ZADD', backlog, since, task_id)
local before = redis.call('ZRANK', backlog, task_id)
redis.call('ZADD', returns, string.format('%.0f', now + within_us), task_id)
local ttl_ms = math.max(math.ceil(within_us / 1000), redis.call('PTTL', returns))
redis.call('PEXPIRE', backlog, ttl_ms)
redis.call('PEXPIRE', returns, ttl_ms)
return {GRANTED, before, redis.call('ZCARD', backlog), run_us}
