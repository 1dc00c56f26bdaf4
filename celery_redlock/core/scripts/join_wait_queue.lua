-- Join the wait queue of the lock, or keep one's place, and return the holder.
--
-- KEYS  1 lock  2 wait_queue
-- ARGV  1 waiter  2 rank  3 ttl_ms of the wait queue
-- Returns {TAKEN, value, ttl_ms} or {FREE}
-- include shared/statuses.lua
local lock, wait_queue = KEYS[1], KEYS[2]
local waiter, rank, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

redis.call('ZADD', wait_queue, rank, waiter)
redis.call('PEXPIRE', wait_queue, ttl_ms)
local value = redis.call('GET', lock)
if value then return {TAKEN, value, redis.call('PTTL', lock)} end
return {FREE}
