-- Return which permits have a holder. Changes nothing.
-- Compares no view: it promises nothing.
--
-- KEYS  1 meta [unused]: a request names a key
-- ARGV  1... of each limit: head, most, ttl_ms
-- Returns {GRANTED, 0, in_use}: shared/permits.lua
-- include shared/statuses.lua
-- include shared/permits.lua
return {GRANTED, 0, (permits_in_use(1))}
