-- Tell how many calls are in the backlog of a key, and how long runs took lately.
-- Compares no view: it changes nothing.
--
-- KEYS  1 backlog [r, large]  2 pace [r]
-- Returns {GRANTED, waiting, run_us}; run_us is 0 where no run has ended
-- include shared/statuses.lua
-- include shared/read_pace.lua
local backlog, pace = KEYS[1], KEYS[2]

local _, run_us = read_pace(pace)
return {GRANTED, redis.call('ZCARD', backlog), run_us}
