-- Tell whether a reconfiguration was aborted here. aborted: the list of those that were.
local function is_aborted(aborted, closed)
  return aborted and string.find(aborted, closed .. '\n', 1, true) ~= nil
end

-- Remember that it was.
local function mark_aborted(meta, aborted, closed)
  if not is_aborted(aborted, closed) then
    redis.call('HSET', meta, 'aborted', (aborted or '') .. closed .. '\n')
  end
end
