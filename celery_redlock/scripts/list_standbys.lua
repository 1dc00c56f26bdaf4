-- Return the standbys. Changes nothing.
-- Compares no view: the list is shown to operators.
--
-- KEYS  1 standbys [r]
-- Returns {GRANTED, standby, standby, ...}
-- include shared/statuses.lua
-- include shared/now_ms.lua
local standbys = KEYS[1]

local listed, reply = redis.call('HGETALL', standbys), {GRANTED}
for i = 1, #listed, 2 do
  if tonumber(listed[i + 1]) > now_ms() then reply[#reply + 1] = listed[i] end
end
return reply
