-- Wake the first waiter whose process still listens; remove those before it.
-- A waiter is its channel, a slash and its name. The lock does not depend on the
-- queue, hence pcall: an ACL or a key of another type must not fail the script.
local function wake_first(wait_queue, free_in_ms)
  local first = redis.pcall('ZPOPMIN', wait_queue)
  while first[1] do
    local channel, name = string.match(first[1], '(.*)/(.*)')
    if channel and redis.pcall('PUBLISH', channel, name .. ' ' .. free_in_ms) ~= 0 then
      return
    end
    first = redis.pcall('ZPOPMIN', wait_queue)
  end
end
