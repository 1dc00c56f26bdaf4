-- Tell which call is first in the backlog of a key, of those that keep their deadlines.
-- Compares no view: no lock is granted here. The backlog says which call may try, and when.
--
-- KEYS  1 backlog [w, large]  2 returns [w, large]
-- ARGV  1 task_id: of the call that asks
-- Returns {GRANTED, waiting, first}; first is '' if there is none
-- include shared/statuses.lua
-- include shared/now_us.lua
-- include shared/take_out_overdue.lua
local backlog, returns = KEYS[1], KEYS[2]

take_out_overdue(backlog, returns, now_us())
return {GRANTED, redis.call('ZCARD', backlog), first_in(backlog)}
