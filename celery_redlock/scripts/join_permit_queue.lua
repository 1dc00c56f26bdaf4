-- Join the wait queue of the key of each limit, or keep one's place, and return which
-- permits have a holder. A waiter for several limits that finds one free and another one
-- full passes the wake-up of the free one on, to a waiter behind it: see JOIN_WAIT_QUEUE.
-- Compares no view: the queue only says when to try, and ACQUIRE_PERMITS decides.
--
-- KEYS  1... the wait_queue [w] of each limit
-- ARGV  1 waiter  2 rank  3 ttl_ms of the wait queue
--       4... of each limit: head, most, ttl_ms
-- Returns {GRANTED, 0, ends_ms, ..., in_use}: of each limit the ttl_ms of the holder that
--         ends first (-1: a permit is free, or none has a ttl); shared/permits.lua
-- include shared/statuses.lua
-- include shared/wake_first.lua
-- include shared/permits.lua
local waiter, rank, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

local in_use, full = permits_in_use(4)
local any_full, reply = false, {GRANTED, 0}
for i = 1, #KEYS do any_full = any_full or full[i] end
for i = 1, #KEYS do
  local wait_queue = KEYS[i]
  reply[i + 2] = full[i] and first_end(3 * i + 1) or -1
  local is_new = redis.call('ZADD', wait_queue, rank, waiter) == 1
  redis.call('PEXPIRE', wait_queue, ttl_ms)
  local passes_on = is_new or redis.call('ZRANK', wait_queue, waiter) == 0
  if any_full and passes_on and not full[i] then
    wake_first(wait_queue, '0', '(' .. rank)
  end
end
reply[#reply + 1] = in_use
return reply
