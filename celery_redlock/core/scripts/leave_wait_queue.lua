-- Leave the wait queue. A waiter that leaves without the lock wakes the next one.
--
-- KEYS  1 lock  2 wait_queue
-- ARGV  1 waiter  2 free_in_ms: when the lock may be tried for (empty: wake no other)
-- Returns {GRANTED, 0}
-- include shared/statuses.lua
-- include shared/wake_first.lua
local lock, wait_queue = KEYS[1], KEYS[2]
local waiter, free_in_ms = ARGV[1], ARGV[2]

redis.call('ZREM', wait_queue, waiter)
if free_in_ms ~= '' and (free_in_ms ~= '0' or not redis.call('GET', lock)) then
  wake_first(wait_queue, free_in_ms)
end
return {GRANTED, 0}
