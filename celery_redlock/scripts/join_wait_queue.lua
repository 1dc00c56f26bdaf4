-- Join the wait queue of each lock, or keep one's place, and return the holders.
-- A waiter for several locks that finds one free and another one held passes the
-- wake-up of the free one on, to a waiter behind it: where it is new, since it was woken,
-- and where it is the first, since a lock that ends by itself wakes no waiter.
-- Compares no view: the queue only says when to try, and ACQUIRE decides.
--
-- KEYS  1... locks [r], then the wait_queue [w] of each
-- ARGV  1 waiter  2 rank  3 ttl_ms of the wait queue
-- Returns {TAKEN, value, ttl_ms, ...} or {FREE}: none has a holder
-- include shared/statuses.lua
-- include shared/owned.lua
-- include shared/wake_first.lua
local waiter, rank, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

local token, locks = nil, #KEYS / 2
-- include shared/held.lua
for i = 1, locks do
  local wait_queue = KEYS[locks + i]
  local is_new = redis.call('ZADD', wait_queue, rank, waiter) == 1
  redis.call('PEXPIRE', wait_queue, ttl_ms)
  local passes_on = is_new or redis.call('ZRANK', wait_queue, waiter) == 0
  if taken and passes_on and taken[2 * i + 1] == -2 then
    wake_first(wait_queue, '0', '(' .. rank)
  end
end
return taken or {FREE}
