-- The entry of a register is four lines: id, published_us, expires, waits or runs.
local register = KEYS[1]
local id, published_us, keep, expires = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ttl_ms, entered = ARGV[5], ARGV[6]

local value = redis.call('GET', register)
local registered, its_published_us, state
if value then
  registered, its_published_us, state =
    string.match(value, '^([^\n]*)\n(%d+)\n[^\n]*\n(%a+)$')
end

-- Tell whether the registered call comes before this one. A call that runs comes
-- only before those that had been entered when it started.
local function is_preceded(holder)
  local runs = state == 'runs' or registered == holder
  if not registered or registered == id or (runs and entered ~= '1') then
    return false
  end
  local theirs, ours = tonumber(its_published_us), tonumber(published_us)
  if theirs == ours then return (registered > id) == (keep == 'latest') end
  return (theirs > ours) == (keep == 'latest')
end

local function enter(new_state)
  local entry = id .. '\n' .. published_us .. '\n' .. expires .. '\n' .. new_state
  redis.call('SET', register, entry, 'PX', ttl_ms)
end
