-- Mark a slot as run by this task, unless another task has marked it.
-- Compares no view: a task is skipped only where a majority names the one that has run.
--
-- KEYS  1 mark [w]
-- ARGV  1 task_id  2 ttl_ms (0: look only)
-- Returns {GRANTED, 0}, or {TAKEN, task_id, ttl_ms} with the other task
-- include shared/statuses.lua
local mark = KEYS[1]
local task_id, ttl_ms = ARGV[1], ARGV[2]

local known = redis.call('GET', mark)
if known and known ~= task_id then
  return {TAKEN, known, redis.call('PTTL', mark)}
end
if ttl_ms ~= '0' then redis.call('SET', mark, task_id, 'PX', ttl_ms) end
return {GRANTED, 0}
