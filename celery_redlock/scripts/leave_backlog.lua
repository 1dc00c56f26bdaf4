-- Leave the backlogs of some keys. Twice is harmless.
-- Compares no view: the backlog only says when to try, and ACQUIRE decides.
--
-- KEYS  1... backlogs [w, large], then the returns [w, large] of each
-- ARGV  1 task_id
-- Returns {GRANTED, 0}
-- include shared/statuses.lua
local task_id = ARGV[1]

for i = 1, #KEYS do redis.call('ZREM', KEYS[i], task_id) end
return {GRANTED, 0}
