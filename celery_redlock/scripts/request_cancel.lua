-- Ask the holder of the lock to end, if it is still this one.
-- The request is the last line of the lock's value. EXTEND returns it to the holder.
-- Compares no view: it acts on a random token, and only asks its holder.
--
-- KEYS  1 lock [w]
-- ARGV  1 token of the holder  2 who: the caller that asks, one line
-- Returns {GRANTED, 0}, {TAKEN, value, ttl_ms} or {FREE}
-- include shared/statuses.lua
-- include shared/owned.lua
-- include shared/ask_to_end.lua
local lock = KEYS[1]
local token, who = ARGV[1], ARGV[2]

local value = redis.call('GET', lock)
if not value then return {FREE} end
if not owned(value, token .. '\n') then return {TAKEN, value, redis.call('PTTL', lock)} end
ask_to_end(lock, value, who)
return {GRANTED, 0}
