-- Take the lock, if this node may vote and no other holder has it.
-- The same token again is granted again, with the same number.
--
-- KEYS  1 lock  2 fence  3 meta  4 quarantine
-- ARGV  1 token  2 holder_info  3 ttl_ms  4 stripe  5 hint_us  6 tolerance_us
--       7 config (empty: no restart guard)  8 quarantine_ms
-- Returns {GRANTED, number}, {TAKEN, value, ttl_ms}, {QUARANTINED, ms},
--         {UNSYNCED, incarnation} or {MISCONFIGURED, config}
-- include shared/statuses.lua
-- include shared/now_us.lua
-- include shared/owned.lua
local lock, fence, meta, quarantine = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, holder_info, ttl_ms, stripe = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local hint_us, tolerance_us = tonumber(ARGV[5]), tonumber(ARGV[6])
local config, quarantine_ms = ARGV[7], ARGV[8]

if config ~= '' then
  local known = redis.call('HMGET', meta, 'config', 'run_id', 'synced', 'incarnation')
  local known_config, run_id, synced = known[1], known[2], known[3]
  if known_config and known_config ~= config then
    return {MISCONFIGURED, known_config}
  end
  -- INFO is one of the few ways for a script to learn that it runs in another
  -- process than before: uptime_in_seconds is wall clock, CONFIG is not allowed.
  -- To find a known run_id as plain text costs a tenth of a pattern.
  local server = redis.call('INFO', 'server')
  local expected = run_id and 'run_id:' .. run_id .. '\r\n'
  if not (expected and string.find(server, expected, 1, true)) then
    run_id = string.match(server, 'run_id:(%w+)')
    redis.call('HSET', meta, 'config', config, 'run_id', run_id, 'incarnation', token)
    redis.call('SET', quarantine, '', 'PX', quarantine_ms)
    return {QUARANTINED, tonumber(quarantine_ms)}
  end
  local left = redis.call('PTTL', quarantine)
  if left ~= -2 then return {QUARANTINED, left} end
  local incarnation = known[4] or run_id
  if synced ~= incarnation then return {UNSYNCED, incarnation} end
end

local value = redis.call('GET', lock)
if owned(value, token) then
  redis.call('PEXPIRE', lock, ttl_ms)
  return {GRANTED, tonumber(string.match(value, '\n(%d+)'))}
end
if value then return {TAKEN, value, redis.call('PTTL', lock)} end

local counters = redis.call('HMGET', fence, stripe, 'floor')
local number = math.max(tonumber(counters[1]) or 0, tonumber(counters[2]) or 0) + 1
if math.abs(hint_us - now_us()) <= tolerance_us then
  number = math.max(number, hint_us)
end
local digits = string.format('%.0f', number) -- Lua would write 1.79e+15
redis.call('HSET', fence, stripe, digits)
redis.call('SET', lock, token .. '\n' .. digits .. '\n' .. holder_info, 'PX', ttl_ms)
return {GRANTED, number}
