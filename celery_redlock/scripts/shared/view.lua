-- Read the text of a view; nil if it is none. members: label -> {number, identity}.
local function view_of(text)
  local settings, deployment, epoch, nonce, kind, nodes = string.match(text,
    '^(format 4, max_ttl %S+ s, restart guard %a+), deployment (%w+), ' ..
    'epoch (%d+)%.(%w+) (%a+), nodes (.*)$')
  if not deployment then return nil end
  local view = {settings = settings, deployment = deployment, epoch = tonumber(epoch), nonce = nonce}
  view.is_founded, view.members = kind == 'founded', {}
  for item in string.gmatch(nodes .. ', ', '(.-), ') do
    local label, number, identity = string.match(item, '^(.*)=(%d+)%.(%w+)$')
    if not label then return nil end
    view.members[label] = {tonumber(number), identity}
  end
  return view
end

-- Tell whether one pair comes before another one: by its first items, then the second.
-- These are texts. Lua would compare them by the locale of the server.
local function precedes(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  for i = 1, math.min(#a[2], #b[2]) do
    local x, y = string.byte(a[2], i), string.byte(b[2], i)
    if x ~= y then return x < y end
  end
  return #a[2] < #b[2]
end

-- Return the member with this identity; nil if the server is no member, or for no view.
local function own_member(view, identity)
  for _, member in pairs(view and view.members or {}) do
    if member[2] == identity then return member end
  end
end

-- Store a view, and since when (in ms) the node knows the members at these labels.
local function store_view(meta, text, labels, since)
  redis.call('HSET', meta, 'config', text)
  for _, label in ipairs(labels) do
    redis.call('HSET', meta, 'known:' .. label, string.format('%.0f', since))
  end
end

local function labels_of(view)
  local labels = {}
  for label in pairs(view.members) do table.insert(labels, label) end
  table.sort(labels)
  return labels
end
