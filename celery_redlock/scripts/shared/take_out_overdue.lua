-- Take the calls out of a backlog that did not come back by their deadlines: they were
-- purged, or are lost.
local function take_out_overdue(backlog, returns, now)
  local overdue = redis.call('ZRANGEBYSCORE', returns, '-inf',
    string.format('%.0f', now), 'LIMIT', 0, 100)
  for _, id in ipairs(overdue) do
    redis.call('ZREM', backlog, id)
    redis.call('ZREM', returns, id)
  end
end

-- Tell whether a call has left a backlog lately: `returns` knows it, and the backlog does
-- not. A message that is late must not enter it once more.
local function has_left(backlog, returns, id)
  return redis.call('ZSCORE', returns, id) and not redis.call('ZSCORE', backlog, id)
end

-- Return the id of the call that is first in a backlog; '' if none is.
local function first_in(backlog)
  return redis.call('ZRANGEBYSCORE', backlog, '-inf', '+inf', 'LIMIT', 0, 1)[1] or ''
end
