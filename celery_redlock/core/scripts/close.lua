-- Take the node out of its configuration: it no longer grants or renews.
-- A node of the new configuration is closed as well, until its locks have ended too.
--
-- KEYS  1 meta
-- ARGV  1 old config  2 closed config (until OPEN)  3 new config  4 quarantine_ms
-- Returns {QUARANTINED, ms} while old locks may live, {FREE} after that, {GRANTED, 0}
--         if the node has the new configuration already, {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/now_us.lua
-- include shared/now_ms.lua
-- include shared/quarantine_left.lua
local meta = KEYS[1]
local old, closed, new, quarantine_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local known = redis.call('HMGET', meta, 'config', 'quarantine_until')
local config, left = known[1], quarantine_left(known[2])
if config == new then return {GRANTED, 0} end
if config and config ~= old and config ~= closed then
  return {MISCONFIGURED, config}
end
if config ~= closed then
  left = math.max(left, tonumber(quarantine_ms))
  redis.call('HSET', meta, 'config', closed,
    'quarantine_until', string.format('%.0f', now_ms() + left))
end
if left == 0 then return {FREE} end
return {QUARANTINED, left}
