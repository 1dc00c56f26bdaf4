-- Leave the backlogs of some keys. Twice is harmless.
-- Compares no view: the backlog only says when to try, and ACQUIRE decides.
--
-- KEYS  1... backlogs [w, large], then the returns [w, large] of each
-- ARGV  1 task_id  2 known_us: for how long the node knows that it has left
-- Returns {GRANTED, 0}
-- include shared/statuses.lua
-- include shared/now_us.lua
local task_id, known_us = ARGV[1], tonumber(ARGV[2])

local keys = #KEYS / 2
local until_us = string.format('%.0f', now_us() + known_us)
for i = 1, keys do
  redis.call('ZREM', KEYS[i], task_id)
  redis.call('ZREM', KEYS[keys + i], task_id)
  if known_us > 0 then
    redis.call('ZADD', KEYS[keys + i], until_us, task_id)
    local left_ms = redis.call('PTTL', KEYS[keys + i])
    redis.call('PEXPIRE', KEYS[keys + i], math.max(math.ceil(known_us / 1000), left_ms))
  end
end
return {GRANTED, 0}
