-- Return the name that the server process has given itself.
local function current_run_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
end
