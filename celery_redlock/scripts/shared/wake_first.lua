-- Wake the first waiter whose process still listens; remove those before it. (A client
-- that subscribes to patterns listens for each of them.) With
-- behind, '(' and a rank, it is the first of those that come after this rank.
-- A waiter is its channel, a slash and its name. The lock does not depend on the
-- queue, hence pcall: an ACL or a key of another type must not fail the script.
local function wake_first(wait_queue, free_in_ms, behind)
  while true do
    local first
    if behind then
      first = redis.pcall('ZRANGEBYSCORE', wait_queue, behind, '+inf', 'LIMIT', 0, 1)[1]
      if first then redis.pcall('ZREM', wait_queue, first) end
    else
      first = redis.pcall('ZPOPMIN', wait_queue)[1]
    end
    if not first then return end
    local channel, name = string.match(first, '(.*)/(.*)')
    if channel and redis.pcall('PUBLISH', channel, name .. ' ' .. free_in_ms) ~= 0 then
      return
    end
  end
end
