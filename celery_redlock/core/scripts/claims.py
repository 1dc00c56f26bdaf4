"""Reserve a call for a job before it is published, and a while after it succeeded.

A claim is a note and no lock: it has no fence and waits for no quarantine. A node
that has forgotten its notes lets one more job be published, and the lock sees to it.

The value of a claim and of a cool-down is readable text, like that of a lock: the
job, a number that says nothing, and ``core.lease.Holder``'s facts, of which the
fourth line of each is the job.
"""

from __future__ import annotations

from celery_redlock.core.scripts.script import Script

__all__ = ["CLAIM", "COOL_DOWN", "FREE_CLAIM", "KEEP_CLAIM"]

CLAIM = Script(
    "claim",
    """
-- Claim a call for a job, unless another job of the call is here already.
-- KEYS  1 claim  2 lock  3 cooldown
-- ARGV  1 job  2 facts  3 ttl_ms  4 look at the lock, too (0 or 1)
--       5 look at the cooldown, too (0 or 1)
-- The same job again is granted again. {2, value, ttl_ms} begins with the other job.
local function other(value)
  local job = value and string.match(value, '^[^\\n]*\\n[^\\n]*\\n[^\\n]*\\n([^\\n]*)')
  return job and job ~= '' and job ~= ARGV[1] and job .. string.match(value, '\\n.*')
end
local value = other(redis.call('GET', KEYS[1]))
if value then return {2, value, redis.call('PTTL', KEYS[1])} end
value = ARGV[4] == '1' and other(redis.call('GET', KEYS[2]))
if value then return {2, value, redis.call('PTTL', KEYS[2])} end
value = ARGV[5] == '1' and other(redis.call('GET', KEYS[3]))
if value then return {2, value, redis.call('PTTL', KEYS[3])} end
redis.call('SET', KEYS[1], ARGV[1] .. '\\n0\\n' .. ARGV[2], 'PX', ARGV[3])
return {1, 0}
""",
)

_CLAIMED_BY = """
local function claimed_by(job)
  local value = redis.call('GET', KEYS[1])
  return value and string.match(value, '^[^\\n]*') == job
end
"""

KEEP_CLAIM = Script(
    "keep_claim",
    f"""
-- Let the claim of a job last so long from now. Never makes one.
-- KEYS  1 claim
-- ARGV  1 job  2 ttl_ms
{_CLAIMED_BY}
if not claimed_by(ARGV[1]) then return {{3}} end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {{1, 0}}
""",
)

FREE_CLAIM = Script(
    "free_claim",
    f"""
-- Give the claim of a job back. Twice is harmless.
-- KEYS  1 claim
-- ARGV  1 job
{_CLAIMED_BY}
if not claimed_by(ARGV[1]) then return {{3}} end
redis.call('DEL', KEYS[1])
return {{1, 0}}
""",
)

COOL_DOWN = Script(
    "cool_down",
    """
-- Note that a job of the call has succeeded, whoever has before.
-- KEYS  1 cooldown
-- ARGV  1 job  2 facts  3 ttl_ms
redis.call('SET', KEYS[1], ARGV[1] .. '\\n0\\n' .. ARGV[2], 'PX', ARGV[3])
return {1, 0}
""",
)
