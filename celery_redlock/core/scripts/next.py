"""What newcomers tell each other, and him who holds the lock.

One of those who wait for a lock is the next to run. Which one it is each node
remembers by itself, as a register that only moves on: to a call that was published
later (``latest``) or earlier (``first``), and, where that is equal, by the id. A
node that has forgotten is told again by whoever is still waiting.

The register holds ``id``, ``published_us``, ``expires`` and ``waits`` or ``runs``, a
line each. One that runs is for those who have been in the register before it, so that
they learn that it has run in their stead. Nobody else has to do with it.
"""

from __future__ import annotations

from celery_redlock.core.scripts.script import OWNED, Script

__all__ = ["CANCEL", "LEAVE_NEXT", "OFFER_NEXT", "TAKE_NEXT"]

_STANDS_BEFORE = """
local value = redis.call('GET', KEYS[1])
local id, published, state
if value then
  id, published, state = string.match(value, '^([^\\n]*)\\n(%d+)\\n[^\\n]*\\n(%a+)$')
end
local function stands_before(latest, entered, holder)
  local runs = state == 'runs' or id == holder
  if not id or id == ARGV[1] or (runs and not entered) then return false end
  local this, that = tonumber(published), tonumber(ARGV[2])
  if this == that then return (id > ARGV[1]) == latest end
  return (this > that) == latest
end
local function enter(state)
  local entry = ARGV[1] .. '\\n' .. ARGV[2] .. '\\n' .. ARGV[4] .. '\\n' .. state
  redis.call('SET', KEYS[1], entry, 'PX', ARGV[5])
end
"""

_ORDER = """\
-- KEYS  1 next
-- ARGV  1 id  2 published_us  3 'latest' or 'first': who stands before
--       4 expires (seconds since 1970; 0: never)  5 ttl_ms
--       6 '1' if we have been entered on a majority before\
"""

OFFER_NEXT = Script(
    "offer_next",
    f"""
-- Be the next to run, unless one that stands before us is.
{_ORDER}
--       7 id of the holder, which runs, whatever the register says (may be empty)
-- Returns {{1, 0}}, or {{2, value, ttl_ms}} with who is the next.
{_STANDS_BEFORE}
if stands_before(ARGV[3] == 'latest', ARGV[6] == '1', ARGV[7]) then
  return {{2, value, redis.call('PTTL', KEYS[1])}}
end
enter('waits')
return {{1, 0}}
""",
)

TAKE_NEXT = Script(
    "take_next",
    f"""
-- Run, unless one that stands before us is the next, or has run in our stead.
{_ORDER}
-- Returns as OFFER_NEXT does.
{_STANDS_BEFORE}
if stands_before(ARGV[3] == 'latest', ARGV[6] == '1') then
  return {{2, value, redis.call('PTTL', KEYS[1])}}
end
enter('runs')
return {{1, 0}}
""",
)

LEAVE_NEXT = Script(
    "leave_next",
    """
-- Neither wait nor run. Twice is harmless.
-- KEYS  1 next
-- ARGV  1 id
local value = redis.call('GET', KEYS[1])
if value and string.match(value, '^[^\\n]*') == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return {1, 0}
end
return {3}
""",
)

CANCEL = Script(
    "cancel",
    f"""
-- Ask the holder of the lock to end, if it is still this one. EXTEND tells it.
-- KEYS  1 lock
-- ARGV  1 token of the holder  2 who asks, in one line
{OWNED}
local value = redis.call('GET', KEYS[1])
if not value then return {{3}} end
if not owned(value, ARGV[1]) then
  return {{2, value, redis.call('PTTL', KEYS[1])}}
end
value = string.gsub(value, '\\ncancelled [^\\n]*$', '')
redis.call('SET', KEYS[1], value .. '\\ncancelled ' .. ARGV[2], 'KEEPTTL')
return {{1, 0}}
""",
)
