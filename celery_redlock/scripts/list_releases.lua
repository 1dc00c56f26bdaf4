-- Return the releases that operators forced. Changes nothing.
-- Compares no view: it promises nothing.
--
-- KEYS  1 releases [r]
-- Returns {GRANTED, name, value, name, value, ...}; see FORCE_RELEASE
-- include shared/statuses.lua
-- include shared/now_ms.lua
local releases = KEYS[1]

local found, reply = redis.call('HGETALL', releases), {GRANTED}
for i = 1, #found, 2 do
  if (tonumber(string.match(found[i + 1], '^%d+')) or 0) > now_ms() then
    reply[#reply + 1] = found[i]
    reply[#reply + 1] = found[i + 1]
  end
end
return reply
