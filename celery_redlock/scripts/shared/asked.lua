-- Read what ACQUIRE is asked for, and the locks. Refuse a client that has no vote here.
-- This is no function: see held.lua. ttls: the ttl of each lock, if they differ.
local meta = KEYS[#KEYS]
local locks = #KEYS - 1
local token, holder_info, ttl_ms = ARGV[1], ARGV[2], ARGV[3]
local hint_us, tolerance_us, view = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]

local ttls
local state = read_state(meta, 'floor', unpack(ARGV, 7, 6 + locks))
local refused = refusal(state, view)
if refused then return refused end

-- include shared/held.lua
-- include shared/bounded.lua
