-- Tell whether this job has the claim.
local function claimed_by(claim, job)
  local value = redis.call('GET', claim)
  return value and string.match(value, '^[^\n]*') == job
end
