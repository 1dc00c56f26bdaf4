-- Register this call as running, unless a call that comes before it waits or has run.
--
-- KEYS  1 register
-- ARGV  1 id  2 published_us  3 keep: 'latest' or 'first', the call that comes before
--       4 expires (seconds since 1970; 0: never)  5 ttl_ms
--       6 entered ('1': a majority has entered this call before)
-- Returns {GRANTED, 0}, or {TAKEN, value, ttl_ms} with the entry that comes before
-- include shared/statuses.lua
-- include shared/successor.lua

if is_preceded() then
  return {TAKEN, value, redis.call('PTTL', register)}
end
enter('runs')
return {GRANTED, 0}
