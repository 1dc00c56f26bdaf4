-- Remove this call from the register. Twice is harmless.
-- Compares no view: see NOTE_PUBLISHED.
--
-- KEYS  1 register [w]  2 published [w]
-- ARGV  1 id
-- Returns {GRANTED, 0} or {FREE}
-- include shared/statuses.lua
-- include shared/now_us.lua
-- include shared/published.lua
local register, published = KEYS[1], KEYS[2]
local id = ARGV[1]

end_published(published, id)
local value = redis.call('GET', register)
if not value or string.match(value, '^[^\n]*') ~= id then return {FREE} end
redis.call('DEL', register)
return {GRANTED, 0}
