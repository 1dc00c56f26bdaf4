-- Release the claim of a job. Twice is harmless.
-- Compares no view: it acts on the claim of one job. To compare would only leave claims
-- behind. A message says which claim its job has, and any client can write a message: so
-- the claim must name the task of the message, too. A node may get this long after a
-- retry has claimed again: the claim must be of the same run, or of the publisher.
--
-- KEYS  1 claim [own]
-- ARGV  1 job  2 task: of the job; '' or none: any task
--       3 follows: the run that has sent the job, as CLAIM; '' or none: any run
-- Returns {GRANTED, 0} or {FREE}
-- include shared/statuses.lua
-- include shared/claimed_by.lua
local claim = KEYS[1]
local job, task, follows = ARGV[1], ARGV[2] or '', ARGV[3] or ''

if not claimed_by(claim, job) then return {FREE} end
local run, claimed =
  string.match(redis.call('GET', claim), '^[^\n]*\n([^\n]*)\n([^\n]*)')
if task ~= '' and claimed ~= task then return {FREE} end
if follows ~= '' and run ~= '0' and run ~= follows then return {FREE} end
redis.call('DEL', claim)
return {GRANTED, 0}
