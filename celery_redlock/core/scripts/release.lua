-- Release the lock, if it is ours, and wake a waiter. Twice is harmless.
--
-- KEYS  1 lock  2 wait_queue
-- ARGV  1 token, or a base with its dot  2 keep_ms (0: delete now)
-- Returns 1 if the lock was ours, else 0
-- include shared/owned.lua
-- include shared/wake_first.lua
local lock, wait_queue = KEYS[1], KEYS[2]
local token, keep_ms = ARGV[1], ARGV[2]

if not owned(redis.call('GET', lock), token) then return 0 end
if keep_ms == '0' then
  redis.call('DEL', lock)
else
  redis.call('PEXPIRE', lock, keep_ms)
end
wake_first(wait_queue, keep_ms)
return 1
