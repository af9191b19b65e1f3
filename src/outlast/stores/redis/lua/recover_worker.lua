-- Taking back what a dead worker held, at most STEPS at a time. Needs base.lua.
-- ARGV: now, mono, worker, sole (1), failure, started: how many or -1 for all, ids; blamed: the same.
-- Answer: how many, and 1 if there is more.

despite_full_memory()
local worker, sole, failure = ARGV[3], ARGV[4] == '1', ARGV[5]
local at = 6

local function named()
  local many = tonumber(ARGV[at])
  if many < 0 then
    at = at + 1
    return nil
  end
  local ids = {}
  for n = 1, many do ids[ARGV[at + n]] = true end
  at = at + many + 1
  return ids
end

local started, blamed = named(), named()
local held, many = P .. 'w' .. worker, 0
local ids = call('SRANDMEMBER', held, STEPS)
for _, id in ipairs(ids) do
  local H, S = header(id), state(id)
  if H and S.st == 'r' and S.w == worker then
    many = many + 1
    if started and not started[id] then
      S.a = S.a - 1
      requeue(id, H, S)
    elseif blamed and not blamed[id] then
      S.u = nil
      requeue(id, H, S)
    elseif sole then
      crash(id, H, S, failure)
    else
      S.u = true
      requeue(id, H, S)
    end
  else
    call('SREM', held, id)
  end
end
finish()
if call('EXISTS', held) == 1 then return {many, 1} end
call('HDEL', P .. 'u', worker)
call('ZREM', P .. 'v', worker)
return {many, 0}
