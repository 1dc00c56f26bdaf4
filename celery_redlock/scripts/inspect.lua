-- Return the holders of the locks. Changes nothing.
-- Compares no view: it promises nothing.
--
-- KEYS  1... locks [r]
-- Returns {TAKEN, value, ttl_ms, ...} or {FREE}: none has a holder
-- include shared/statuses.lua
-- include shared/owned.lua
local token, locks = nil, #KEYS
-- include shared/held.lua
return taken or {FREE}
