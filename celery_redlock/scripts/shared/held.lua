-- Read the first so many KEYS, which are locks. ours: how many of them have this token
-- (nil: none can have it). mine: the value of one of these, with a cancel request if one
-- has it. taken: the reply that names the other holders, if there are any: value and
-- ttl_ms for each lock in turn; '' and -2, as PTTL says it, for a lock without one.
-- This is no function, because that takes longer: here is what each ACQUIRE runs.
local ours, mine, taken = 0, nil, nil
for i = 1, locks do
  local value = redis.call('GET', KEYS[i])
  if token and owned(value, token) then
    ours = ours + 1
    if not mine or string.find(value, '\ncancelled [^\n]*$') then mine = value end
  elseif value then
    if not taken then
      taken = {TAKEN}
      for j = 1, locks do taken[2 * j], taken[2 * j + 1] = '', -2 end
    end
    taken[2 * i], taken[2 * i + 1] = value, redis.call('PTTL', KEYS[i])
  end
end
