-- Release the locks that are ours, and wake a waiter of each. Twice is harmless. A permit
-- for a start that is kept wakes none: its waiters wait for the permit of the run, too.
-- Compares no view: it acts on a random token, and so on no lock of another holder.
-- To compare would only leave locks behind.
--
-- KEYS  1... locks [own, late], then the wait_queue [rare] of each
-- ARGV  1 token, or a base with its dot  2 keep_ms (0: delete now)
-- Returns 1 if a lock was ours, else 0
-- include shared/owned.lua
-- include shared/wake_first.lua
local token, keep_ms = ARGV[1], ARGV[2]

local released, locks = 0, #KEYS / 2
for i = 1, locks do
  local wait_queue = KEYS[locks + i]
  local value = redis.call('GET', KEYS[i])
  if owned(value, token) then
    local is_kept = false
    if keep_ms == '0' then
      redis.call('DEL', KEYS[i])
    else
      redis.call('PEXPIRE', KEYS[i], keep_ms)
      is_kept = string.sub(value, -5) == '\nkept'
    end
    if not is_kept then wake_first(wait_queue, keep_ms) end
    released = 1
  end
end
return released
