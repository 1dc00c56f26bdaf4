-- Raise one fence counter to a number. Never lowers it.
-- %.0f, because Lua would write 1.79e+15.
local function raise_counter(meta, field, number)
  local counter = tonumber(redis.call('HGET', meta, field)) or 0
  if counter < number then
    redis.call('HSET', meta, field, string.format('%.0f', number))
  end
end
