-- Number a call that is about to be published, and join the backlog of its key with that
-- number: greater than all that were given before, also by publishers with other clocks.
-- A call that has left the backlog in the meantime does not join it.
-- Compares no view: no lock is granted here. The backlog says which call may try, and when.
--
-- KEYS  1 backlog [w, large]  2 returns [w, large]  3 greatest [w]: number so far
-- ARGV  1 task_id  2 least (µs since 1970)  3 within_us: until its deadline
--       4 is_given ('1': other nodes have given it the number least; else empty)
-- Returns {GRANTED, number}
-- include shared/statuses.lua
-- include shared/now_us.lua
-- include shared/take_out_overdue.lua
local backlog, returns, greatest = KEYS[1], KEYS[2], KEYS[3]
local task_id, least, within_us = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local is_given = ARGV[4] == '1'

local now = now_us()
take_out_overdue(backlog, returns, now)
local before = tonumber(redis.call('GET', greatest) or '') or 0
local number = is_given and least or math.max(least, before + 1)
if has_left(backlog, returns, task_id) then return {GRANTED, number} end
redis.call('ZADD', backlog, string.format('%.0f', number), task_id)
redis.call('ZADD', returns, string.format('%.0f', now + within_us), task_id)
local ttl_ms = math.max(math.ceil(within_us / 1000), redis.call('PTTL', returns))
redis.call('PEXPIRE', backlog, ttl_ms)
redis.call('PEXPIRE', returns, ttl_ms)
local after = string.format('%.0f', math.max(number, before))
redis.call('SET', greatest, after, 'PX', ttl_ms)
return {GRANTED, number}
