-- Join the backlog of a key, or keep one's place in it, and tell the place. A call that
-- has not joined again by its deadline is taken out: it was purged, or is lost.
-- Compares no view: no lock is granted here. The backlog says which call may try, and when.
--
-- KEYS  1 backlog [w, large]  2 returns [w, large]  3 pace [r]
-- ARGV  1 task_id  2 since (µs since 1970)  3 within_us: until its deadline
--       4 only_if_there ('1': a call that has left does not join again; else empty)
-- Returns {GRANTED, before, waiting, run_us, first}; run_us is 0 where no run has ended,
--         first is the id of the call that is before all others
-- include shared/statuses.lua
-- include shared/now_us.lua
-- include shared/read_pace.lua
-- include shared/take_out_overdue.lua
local backlog, returns, pace = KEYS[1], KEYS[2], KEYS[3]
local task_id, since, within_us = ARGV[1], ARGV[2], tonumber(ARGV[3])
local only_if_there = ARGV[4]

local now = now_us()
take_out_overdue(backlog, returns, now)
local _, run_us = read_pace(pace)
if only_if_there == '1' and has_left(backlog, returns, task_id) then
  return {GRANTED, 0, redis.call('ZCARD', backlog), run_us, first_in(backlog)}
end
redis.call('ZADD', backlog, since, task_id)
local before = redis.call('ZRANK', backlog, task_id)
redis.call('ZADD', returns, string.format('%.0f', now + within_us), task_id)
local ttl_ms = math.max(math.ceil(within_us / 1000), redis.call('PTTL', returns))
redis.call('PEXPIRE', backlog, ttl_ms)
redis.call('PEXPIRE', returns, ttl_ms)
return {GRANTED, before, redis.call('ZCARD', backlog), run_us, first_in(backlog)}
