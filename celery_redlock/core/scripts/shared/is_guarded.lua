-- Tell whether nodes of this configuration keep quarantines.
local function is_guarded(config)
  return not string.find(config, 'restart guard off', 1, true)
end
