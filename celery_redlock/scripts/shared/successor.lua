-- The entry of a register has these lines: id, number, expires, waits or runs, and
-- for a call that runs when it started. The number is the node's own for a call that
-- its publisher announced (note_published), else the time that the call brings.
local register, published = KEYS[1], KEYS[2]
local id, published_us, keep, expires = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ttl_ms, entered = ARGV[5], ARGV[6]

local value = redis.call('GET', register)
local registered, its_number, state, started
if value then
  registered, its_number, state, started =
    string.match(value, '^([^\n]*)\n(%d+)\n[^\n]*\n(%a+)\n?(%d*)$')
end
local noted = tonumber(redis.call('ZSCORE', published, id) or 0)
local is_noted = noted > LEAST_NUMBER
-- A call that has started before (a retry, a redelivery) is as new as that start.
local is_known = noted ~= 0
local number = is_known and string.format('%.0f', math.abs(noted)) or published_us

-- Return the entry of a call that was published later and expires no earlier.
local function later_one()
  local latest = redis.call('ZREVRANGE', published, 0, 9, 'WITHSCORES')
  for i = 1, #latest, 2 do
    local other, score = latest[i], tonumber(latest[i + 1])
    if score <= LEAST_NUMBER or score <= tonumber(number) then return end
    local ends = tonumber(redis.call('ZSCORE', published, 'expires ' .. other) or 0)
    if ends == 0 or (tonumber(expires) > 0 and ends >= tonumber(expires)) then
      local digits = string.format('%.0f', score)
      return other .. '\n' .. digits .. '\n' .. ends .. '\nwaits'
    end
  end
end

-- Return the entry that comes before this call. A call that runs comes only before
-- those that were published, or had been entered, when it started.
local function preceding(holder)
  local later = keep == 'latest' and is_known and later_one()
  if later then return later end
  if not registered or registered == id then return end
  local theirs, ours = tonumber(its_number), tonumber(number)
  if state == 'runs' or registered == holder then
    if is_noted and keep == 'first' and started ~= '' and ours <= tonumber(started) then
      return value
    end
    local knew = entered == '1' or (is_noted and keep == 'latest')
    if not knew then return end
  end
  if theirs == ours then
    return (registered > id) == (keep == 'latest') and value
  end
  return (theirs > ours) == (keep == 'latest') and value
end

-- Return the reply that names another call. This call ends, or comes back as one that
-- was not announced: no other call ends because of it any more.
local function taken(before)
  local left = before == value and redis.call('PTTL', register) or
    redis.call('PTTL', published)
  end_published(published, id, tonumber(number))
  return {TAKEN, before, left}
end

local function enter(new_state)
  local entry = id .. '\n' .. number .. '\n' .. expires .. '\n' .. new_state
  redis.call('SET', register, entry, 'PX', ttl_ms)
end
