-- A lock that would last for longer than max_ttl was stored before the clock of the node
-- was set back. No lease of its holder is valid one max_ttl from now, so it ends then: not
-- a permit that is kept after its run, and no value of others.
local max_ttl_ms = math.ceil(1000 * string.match(view, '^format 4, max_ttl (%S+) s'))
for i = 1, taken and locks or 0 do
  local value, left_ms = taken[2 * i], taken[2 * i + 1]
  local is_kept = string.find(value .. '\n', '\nkept\n', 1, true)
  if left_ms > max_ttl_ms and not is_kept and string.find(value, '^[^\n]+\n%d+\n') then
    redis.call('PEXPIRE', KEYS[i], string.format('%.0f', max_ttl_ms))
    taken[2 * i + 1] = max_ttl_ms
  end
end
