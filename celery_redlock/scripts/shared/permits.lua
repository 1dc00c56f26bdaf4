-- A limit is head, most and ttl_ms in ARGV. Its permits are locks: 'key##2' ... of the
-- head 'key##', where the first one is 'key' itself; 'key@@1' ... of the head 'key@@'.

-- Return the names of the permits of the limit at this place in ARGV.
local function permits_of(place)
  local head, names = ARGV[place], {}
  for i = 1, tonumber(ARGV[place + 1]) do names[i] = head .. i end
  if string.sub(head, -2) == '##' then
    names[1] = string.sub(head, 1, -3)
  end
  return names
end

local FREE_PERMIT, UNKNOWN_HOLDER = '--------', '????????'
local MOST_MS = 999999999999 -- 12 digits: 31 years

-- Return who holds the permits of the limits from this place in ARGV on: for each permit
-- in turn the last 8 characters of the token of its holder, and for each permit for a
-- start 12 digits more: its ttl_ms, at most MOST_MS. And for each limit whether all have a
-- holder. A key of another type reads as one without a holder.
local function permits_in_use(place)
  local texts, full = {}, {}
  for at = place, #ARGV, 3 do
    local names = permits_of(at)
    local values, is_full = redis.call('MGET', unpack(names)), true
    for i = 1, #names do
      local value = values[i]
      if not value then
        values[i], is_full = FREE_PERMIT, false
      elseif #value < 49 then
        values[i] = UNKNOWN_HOLDER
      else
        values[i] = string.sub(value, 42, 49)
      end
    end
    if string.sub(ARGV[at], -2) == '@@' then
      for i = 1, #names do
        local ttl_ms = math.min(MOST_MS, math.max(0, redis.call('PTTL', names[i])))
        values[i] = values[i] .. string.format('%012.0f', ttl_ms)
      end
    end
    texts[#texts + 1], full[#full + 1] = table.concat(values), is_full
  end
  return table.concat(texts), full
end

-- Return the ttl_ms of the permit that ends first, of the limit at this place in ARGV.
local function first_end(place)
  local names, first = permits_of(place), -1
  for i = 1, #names do
    local ttl_ms = redis.call('PTTL', names[i])
    if ttl_ms >= 0 and (first < 0 or ttl_ms < first) then first = ttl_ms end
  end
  return first
end
