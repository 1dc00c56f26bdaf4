local time -- TIME is read once: a script has one present

-- Return TIME in microseconds.
local function now_us()
  time = time or redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
