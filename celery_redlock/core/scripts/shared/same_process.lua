-- Tell whether the server still runs in the process in which the node was admitted.
-- Without the restart guard, every process will do.
local function same_process(config, run_id)
  return not is_guarded(config) or run_id == current_run_id()
end
