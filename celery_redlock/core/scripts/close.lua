-- Take the node out of its configuration: it no longer grants or renews.
--
-- KEYS  1 fence  2 meta  3 quarantine
-- ARGV  1 old config  2 closed config (until OPEN)  3 new config  4 quarantine_ms
-- Returns {QUARANTINED, ms} while old locks may live, {FREE} after that, {GRANTED, 0}
--         if the node has the new configuration already, {MISCONFIGURED, config}
-- include shared/statuses.lua
local meta, quarantine = KEYS[2], KEYS[3]
local old, closed, new, quarantine_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local config = redis.call('HGET', meta, 'config')
if config == new then return {GRANTED, 0} end
if config and config ~= old and config ~= closed then
  return {MISCONFIGURED, config}
end
local left = redis.call('PTTL', quarantine)
if config ~= closed then
  redis.call('HSET', meta, 'config', closed)
  left = math.max(left, tonumber(quarantine_ms))
  redis.call('SET', quarantine, '', 'PX', left)
end
if left == -2 then return {FREE} end
return {QUARANTINED, left}
