-- include shared/now_us.lua
-- include shared/raise_counter.lua

-- Raise the fence counters of field, counter, ... from this place in ARGV on. The field
-- 'time' raises the floor: above the TIME of this node by so many microseconds.
local function raise_counters(meta, place)
  for i = place, #ARGV, 2 do
    local field, number = ARGV[i], tonumber(ARGV[i + 1])
    if field == 'time' then field, number = 'floor', now_us() + number end
    raise_counter(meta, field, number)
  end
end
