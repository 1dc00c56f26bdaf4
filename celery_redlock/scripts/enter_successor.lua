-- Register this call as the successor, unless a call that comes before it is.
-- Compares no view: see NOTE_PUBLISHED.
--
-- KEYS  1 register [w]  2 published [w]
-- ARGV  1 id  2 published_us  3 keep: 'latest' or 'first', the call that comes before
--       4 expires (seconds since 1970; 0: never)  5 ttl_ms
--       6 entered ('1': a majority has entered this call before)
--       7 holder: id of the call that runs, as the lock says (may be empty)
-- Returns {GRANTED, 0}, or {TAKEN, value, ttl_ms} with the entry that comes before
-- include shared/statuses.lua
-- include shared/now_us.lua
-- include shared/published.lua
-- include shared/successor.lua
local holder = ARGV[7]

local before = preceding(holder)
if before then return taken(before) end
enter('waits')
return {GRANTED, 0}
