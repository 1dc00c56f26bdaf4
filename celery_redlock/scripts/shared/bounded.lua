-- A lock that would last for longer than one can be granted was stored before the clock of
-- the node was set back. No lease of its holder is valid max_ttl from now, so it ends then.
-- A permit that is kept after its run has begun by then, and is kept for the longest period
-- in its value: see _kept in locks/redlock.py. Values of others are left alone.
if taken then -- most locks are free, and pay for no more
  local max_ttl_s = string.match(view, '^format 4, max_ttl (%S+) s')
  local max_ttl_ms = math.ceil(1000 * tonumber(max_ttl_s))
  local START_WITHIN_MS, DRIFT = 10000, 1.02

  local function longest_ms(value)
    if string.sub(value, -5) ~= '\nkept' then return max_ttl_ms end
    local longest = 0
    for period in string.gmatch(value, '\nlimit %d+ (%S+) ') do
      longest = math.max(longest, 1000 * (tonumber(period) or math.huge))
    end
    if longest == 0 then return math.huge end
    return math.ceil(DRIFT * (max_ttl_ms + START_WITHIN_MS + longest))
  end

  for i = 1, locks do
    local value, left_ms = taken[2 * i], taken[2 * i + 1]
    if left_ms > max_ttl_ms and string.find(value, '^[^\n]+\n%d+\n') then
      local most_ms = longest_ms(value)
      if left_ms > most_ms then
        redis.call('PEXPIRE', KEYS[i], string.format('%.0f', most_ms))
        taken[2 * i + 1] = most_ms
      end
    end
  end
end
