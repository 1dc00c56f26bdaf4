-- include shared/now_us.lua
-- Return TIME in milliseconds, rounded down.
local function now_ms()
  return math.floor(now_us() / 1000)
end
