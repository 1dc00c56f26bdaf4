-- Record up to which instant the slots of schedule entries are done. Only grows.
-- Compares no view: the record only grows. READ_SLOTS compares, and reads it.
--
-- KEYS  1 slots [w]
-- ARGV  1 ttl_ms  2... name, instant_us, name, instant_us ('': delete the entry), ...
-- Returns {GRANTED, 0}
-- include shared/statuses.lua
local slots = KEYS[1]
local ttl_ms = ARGV[1]

for i = 2, #ARGV, 2 do
  local name, instant = ARGV[i], tonumber(ARGV[i + 1])
  if not instant then
    redis.call('HDEL', slots, name)
  elseif instant > (tonumber(redis.call('HGET', slots, name)) or 0) then
    redis.call('HSET', slots, name, ARGV[i + 1])
  end
end
redis.call('PEXPIRE', slots, ttl_ms)
return {GRANTED, 0}
