-- Take one permit of each limit: ACQUIRE of the locks that the client has chosen. Who does
-- not get them is told which permits have a holder, and can choose others.
--
-- KEYS  1... locks [own], then meta [vote, stripes]
-- ARGV  1 token  2 holder_info  3 ttl_ms  4 hint_us (-1: the time of the node)
--       5 tolerance_us  6 view
--       7... stripes: the one of each lock; then of each limit: head, most, ttl_ms.
--       The names of the permits of a limit are its head and a number: shared/permits.lua.
--       Another ttl_ms than the common one is that of a permit for a start, which is
--       kept after the run; the last line of its value is 'kept'
-- Returns as ACQUIRE, but {TAKEN, value, ttl_ms, ..., in_use}: shared/permits.lua
-- include shared/statuses.lua
-- include shared/state.lua
-- include shared/owned.lua
-- include shared/permits.lua
-- include shared/asked.lua
if taken then
  taken[#taken + 1] = permits_in_use(7 + locks)
  return taken
end
ttls = {}
for i = 1, locks do ttls[i] = ARGV[6 + locks + 3 * i] end
-- include shared/grant.lua
