-- Grant all locks, which have no other holder. This is no function: see held.lua.
if ours == locks then
  for i = 1, locks do redis.call('PEXPIRE', KEYS[i], ttls and ttls[i] or ttl_ms) end
  return {GRANTED, tonumber(string.match(mine, '\n(%d+)'))}
end

local OWN_TIME = -1 -- in place of a hint: the time of a node that decides alone
local number = 0
for i = 8, #state do
  local counter = tonumber(state[i])
  if counter and counter > number then number = counter end
end
number = number + 1
if hint_us == OWN_TIME then
  number = math.max(number, now_us())
elseif math.abs(hint_us - now_us()) <= tolerance_us then
  number = math.max(number, hint_us)
end
local digits = string.format('%.0f', number) -- Lua would write 1.79e+15
local value = token .. '\n' .. digits .. '\n' .. holder_info
for i = 1, locks do
  redis.call('HSET', meta, ARGV[i + 6], digits)
  if ttls and ttls[i] ~= ttl_ms then
    redis.call('SET', KEYS[i], value .. '\nkept', 'PX', ttls[i])
  else
    redis.call('SET', KEYS[i], value, 'PX', ttl_ms)
  end
end
return {GRANTED, number}
