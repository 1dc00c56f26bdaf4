-- Remove this call from the register. Twice is harmless.
--
-- KEYS  1 register
-- ARGV  1 id
-- Returns {GRANTED, 0} or {FREE}
-- include shared/statuses.lua
local register = KEYS[1]
local id = ARGV[1]

local value = redis.call('GET', register)
if not value or string.match(value, '^[^\n]*') ~= id then return {FREE} end
redis.call('DEL', register)
return {GRANTED, 0}
