-- Ask the holder of a lock with this value to end: the last line says who asks.
local function ask_to_end(lock, value, who)
  value = string.gsub(value, '\ncancelled [^\n]*$', '')
  redis.call('SET', lock, value .. '\ncancelled ' .. who, 'KEEPTTL')
end
