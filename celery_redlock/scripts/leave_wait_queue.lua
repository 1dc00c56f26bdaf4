-- Leave the wait queues. A waiter that leaves without the locks wakes the next ones.
-- Compares no view: the queue only says when to try, and ACQUIRE decides.
--
-- KEYS  1... locks [r], then the wait_queue [w] of each
-- ARGV  1 waiter  2 free_in_ms: when the lock may be tried for (empty: wake no other)
--       3 has_permit: 1 where it got one that it was not woken for. Then it wakes the next
--         one only if it has been woken since, for another permit
-- Returns {GRANTED, 0}
-- include shared/statuses.lua
-- include shared/wake_first.lua
local waiter, free_in_ms, has_permit = ARGV[1], ARGV[2], ARGV[3] == '1'

local locks = #KEYS / 2
for i = 1, locks do
  local wait_queue = KEYS[locks + i]
  local is_queued = redis.call('ZREM', wait_queue, waiter) == 1
  local may_be_free = free_in_ms ~= '0' or not redis.call('GET', KEYS[i])
  if free_in_ms ~= '' and may_be_free and not (has_permit and is_queued) then
    wake_first(wait_queue, free_in_ms)
  end
end
return {GRANTED, 0}
