-- The published calls of a register are a sorted set:
--
--   number, in us since 1970 by this node   a call that was published and not started
--   minus a time, in us since 1970          a call that has started or ended
--   minus a time, of 'ended <id>'           when a call gave way to another one
--   seconds since 1970, of 'expires <id>'   when a call expires, if it does
local LEAST_NUMBER = 1e12
local KEPT_US = 60 * 1000000 -- that a call has ended, against words that come late

-- Note that a call has started or ended: now, or for the order at another time.
local function end_published(published, id, at_us)
  local now = now_us()
  local known = tonumber(redis.call('ZSCORE', published, id) or 0)
  if known >= 0 then -- else it has started before, and is as new as that
    redis.call('ZADD', published, string.format('%.0f', -(at_us or now)), id)
  end
  if at_us then
    redis.call('ZADD', published, string.format('%.0f', -now), 'ended ' .. id)
  end
  redis.call('ZREM', published, 'expires ' .. id)
  redis.call('ZREMRANGEBYSCORE', published, string.format('%.0f', KEPT_US - now), 0)
  local latest = redis.call('ZREVRANGE', published, 0, 0, 'WITHSCORES')
  if tonumber(latest[2] or 0) <= LEAST_NUMBER then
    redis.call('PEXPIRE', published, KEPT_US / 1000)
  end
end
