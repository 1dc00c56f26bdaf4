"""The line in which people wait for a lock, and waking the first of it.

Whoever waits has a channel that its process subscribes to; see ``core.wakeup``. A
node wakes ONE waiter, the one with the least rank. One whose process is gone hears
nothing, which PUBLISH tells, and then it is the next one's turn.

No lock hangs on a line. So nothing in here may keep a script from doing what it was
called for: not a missing permission to publish, not a key of another type (pcall).
"""

from __future__ import annotations

from celery_redlock.core.scripts.script import Script

__all__ = ["LINE_UP", "STEP_OUT", "WAKE_FIRST"]

# A waiter's name is its channel, a slash, and what it is called in its process.
WAKE_FIRST = """
local first = redis.pcall('ZPOPMIN', KEYS[2])
while first[1] do
  local channel, name = string.match(first[1], '(.*)/(.*)')
  if redis.pcall('PUBLISH', channel, name .. ' ' .. ARGV[2]) ~= 0 then break end
  first = redis.pcall('ZPOPMIN', KEYS[2])
end
"""

LINE_UP = Script(
    "line_up",
    """
-- Wait in line, or keep one's place there, and tell who holds the lock.
-- KEYS  1 lock  2 line
-- ARGV  1 waiter  2 rank  3 ttl_ms of the line
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
local value = redis.call('GET', KEYS[1])
if value then return {2, value, redis.call('PTTL', KEYS[1])} end
return {3}
""",
)

STEP_OUT = Script(
    "step_out",
    f"""
-- Leave the line. Who goes without the lock passes on that it is free, or will be.
-- KEYS  1 lock  2 line
-- ARGV  1 waiter  2 in how many ms it may be tried for; '' passes nothing on
redis.call('ZREM', KEYS[2], ARGV[1])
if ARGV[2] ~= '' and (ARGV[2] ~= '0' or not redis.call('GET', KEYS[1])) then
  {WAKE_FIRST}
end
return {{1, 0}}
""",
)
