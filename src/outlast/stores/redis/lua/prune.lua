-- Expiring, then forgetting jobs, keys, events and steps: `limit` in all. Needs base.lua.
-- ARGV: now, mono, limit. Answer: how many.

local refused = moved()
if refused then return refused end
local limit, many = tonumber(ARGV[3]), 0

local function due(name)
  if many >= limit then return {} end
  return call('ZRANGEBYSCORE', P .. name, '-inf', now, 'LIMIT', 0, limit - many)
end

for _, id in ipairs(due('x')) do
  local H, S = header(id), state(id)
  if H and S.st == 'q' then end_waiting(id, H, S, EXPIRED) else call('ZREM', P .. 'x', id) end
  many = many + 1
end
for _, id in ipairs(due('z')) do
  local H, S = header(id), state(id)
  call('ZREM', P .. 'z', id)
  if H then remove(id, H, S) end
  many = many + 1
end
for _, field in ipairs(due('f')) do
  forget_key(field)
  many = many + 1
end
for _, event in ipairs(due('R')) do
  call('HDEL', P .. 'r', event)
  call('ZREM', P .. 'R', event)
  many = many + 1
end
while many < limit do
  local more = forget_more(limit - many)
  if more == 0 then break end
  many = many + more
end
wake_waiting(STEPS) -- whom the sender of an event has left asleep, should it have died
local old = call('ZRANGEBYSCORE', P .. 'v', '-inf', now - 3600, 'LIMIT', 0, STEPS)
for _, worker in ipairs(old) do
  call('HDEL', P .. 'u', worker)
  call('ZREM', P .. 'v', worker)
end
finish()
return many
