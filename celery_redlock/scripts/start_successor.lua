-- Register this call as running, unless a call that comes before it waits or has run.
-- Compares no view: see NOTE_PUBLISHED.
--
-- KEYS  1 register [w]  2 published [w]
-- ARGV  1 id  2 published_us  3 keep: 'latest' or 'first', the call that comes before
--       4 expires (seconds since 1970; 0: never)  5 ttl_ms
--       6 entered ('1': a majority has entered this call before)
-- Returns {GRANTED, 0}, or {TAKEN, value, ttl_ms} with the entry that comes before
-- include shared/statuses.lua
-- include shared/now_us.lua
-- include shared/published.lua
-- include shared/successor.lua

local before = preceding()
if before then return taken(before) end
local latest = redis.call('ZREVRANGE', published, 0, 0, 'WITHSCORES')
local started = math.max(now_us(), tonumber(latest[2] or 0), tonumber(number))
enter(string.format('runs\n%.0f', started))
end_published(published, id)
return {GRANTED, 0}
