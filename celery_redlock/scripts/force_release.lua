-- Release the locks because an operator decided to, and record that. A record ends after
-- its ttl, or when there are too many later ones.
-- Compares no view: an operator releases what is there, in any view.
--
-- KEYS  1... locks [w], then the wait_queue [w] of each, then releases [w]
-- ARGV  1 token, or the whole value that another program wrote  2 name: of the record;
--       the token, where the holder has one  3 record  4 ttl_ms of the record
--       5 most: how many records are kept
-- Returns {GRANTED, 0} if a lock was there, else {FREE}
-- include shared/statuses.lua
-- include shared/now_ms.lua
-- include shared/owned.lua
-- include shared/wake_first.lua
local releases = KEYS[#KEYS]
local token, name, record = ARGV[1], ARGV[2], ARGV[3]
local ttl_ms, most = tonumber(ARGV[4]), tonumber(ARGV[5])

-- Tell whether it is the value that the operator was shown. One that only begins so is of
-- a holder that has come since: values of other programs may be short, or empty.
local function is_shown(value)
  return value == token or owned(value, token .. '\n')
end

local reply, locks = {FREE}, (#KEYS - 1) / 2
for i = 1, locks do
  local wait_queue = KEYS[i + locks]
  if is_shown(redis.call('GET', KEYS[i])) then
    redis.call('DEL', KEYS[i])
    wake_first(wait_queue, '0')
    reply = {GRANTED, 0}
  end
end
-- The release does not depend on its record, hence pcall: see wake_first.
local head = string.format('%.0f\n%d\n', now_ms() + ttl_ms, reply[1] == GRANTED and 1 or 0)
if type(redis.pcall('HSET', releases, name, head .. record)) ~= 'number' then
  return reply
end
redis.call('PEXPIRE', releases, ttl_ms)
local found, kept = redis.call('HGETALL', releases), {}
for i = 1, #found, 2 do
  local until_ms = tonumber(string.match(found[i + 1], '^%d+')) or 0
  if until_ms <= now_ms() then
    redis.call('HDEL', releases, found[i])
  else
    kept[#kept + 1] = {until_ms, found[i]}
  end
end
table.sort(kept, function(a, b)
  return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])
end)
for i = 1, #kept - most do redis.call('HDEL', releases, kept[i][2]) end
return reply
