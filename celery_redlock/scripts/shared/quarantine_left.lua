-- Return for how many milliseconds a quarantine lasts; 0 if there is none.
local function quarantine_left(quarantine_until)
  return quarantine_until and math.max(0, tonumber(quarantine_until) - now_ms()) or 0
end
