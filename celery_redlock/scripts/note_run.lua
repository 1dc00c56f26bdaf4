-- Count a run of each of some keys in the mean of how long their runs took lately: the
-- mean of the first ones, then one in which earlier runs count ever less.
-- Compares no view: the mean only says when to try, and ACQUIRE decides.
--
-- KEYS  1... paces [w]
-- ARGV  1 run_us: how long the run took  2 most: the weight of a run is 1 / most at least
--       3 ttl_ms
-- Returns {GRANTED, 0}
-- include shared/statuses.lua
-- include shared/read_pace.lua
local run_us, most, ttl_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]

for i = 1, #KEYS do
  local pace = KEYS[i]
  local runs, mean_us = read_pace(pace)
  runs = math.min(runs + 1, most)
  mean_us = math.max(1, mean_us + math.floor((run_us - mean_us) / runs))
  redis.call('SET', pace, string.format('%.0f %.0f', runs, mean_us), 'PX', ttl_ms)
end
return {GRANTED, 0}
