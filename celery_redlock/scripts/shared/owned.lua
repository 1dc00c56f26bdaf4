-- Tell whether the value of a lock begins with this token.
local function owned(value, token)
  return value and string.sub(value, 1, #token) == token
end
