-- Return how many runs of a key were counted, and how long they took on average, in µs.
local function read_pace(pace)
  local runs, mean_us = string.match(redis.call('GET', pace) or '', '^(%d+) (%d+)$')
  return tonumber(runs) or 0, tonumber(mean_us) or 0
end
