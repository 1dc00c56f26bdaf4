-- Take the lock, if this node may vote and no other holder has it.
-- The same token again is granted again, with the same number.
--
-- KEYS  1 lock  2 meta
-- ARGV  1 token  2 holder_info  3 ttl_ms  4 stripe  5 hint_us  6 tolerance_us
--       7 config  8 quarantine_ms
-- Returns {GRANTED, number}, {TAKEN, value, ttl_ms}, {QUARANTINED, ms},
--         {UNSYNCED, incarnation} or {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/now_us.lua
-- include shared/now_ms.lua
-- include shared/owned.lua
-- include shared/is_guarded.lua
-- include shared/begin_quarantine.lua
-- include shared/quarantine_left.lua
local lock, meta = KEYS[1], KEYS[2]
local token, holder_info, ttl_ms, stripe = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local hint_us, tolerance_us = tonumber(ARGV[5]), tonumber(ARGV[6])
local config, quarantine_ms = ARGV[7], tonumber(ARGV[8])

local known = redis.call('HMGET', meta, 'config', 'run_id', 'incarnation', 'synced',
  'quarantine_until', stripe, 'floor')
local run_id, incarnation = known[2], known[3]
if known[1] and known[1] ~= config then return {MISCONFIGURED, known[1]} end
if not known[1] and not is_guarded(config) then return {UNSYNCED, ''} end
if is_guarded(config) then
  -- INFO is one of the few ways for a script to learn that it runs in another
  -- process than before: uptime_in_seconds is wall clock, CONFIG is not allowed.
  -- To find a known run_id as plain text costs a tenth of a pattern.
  local server = redis.call('INFO', 'server')
  local expected = known[1] and run_id and 'run_id:' .. run_id .. '\r\n'
  if not (expected and string.find(server, expected, 1, true)) then
    run_id = string.match(server, 'run_id:(%w+)')
    begin_quarantine(meta, config, run_id, token, quarantine_ms)
    return {QUARANTINED, quarantine_ms}
  end
end
local left = quarantine_left(known[5])
if left > 0 then return {QUARANTINED, left} end
if not incarnation or known[4] ~= incarnation then
  return {UNSYNCED, incarnation or ''}
end

local value = redis.call('GET', lock)
if owned(value, token) then
  redis.call('PEXPIRE', lock, ttl_ms)
  return {GRANTED, tonumber(string.match(value, '\n(%d+)'))}
end
if value then return {TAKEN, value, redis.call('PTTL', lock)} end

local number = math.max(tonumber(known[6]) or 0, tonumber(known[7]) or 0) + 1
if math.abs(hint_us - now_us()) <= tolerance_us then
  number = math.max(number, hint_us)
end
local digits = string.format('%.0f', number) -- Lua would write 1.79e+15
redis.call('HSET', meta, stripe, digits)
redis.call('SET', lock, token .. '\n' .. digits .. '\n' .. holder_info, 'PX', ttl_ms)
return {GRANTED, number}
