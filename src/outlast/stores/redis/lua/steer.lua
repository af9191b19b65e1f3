-- What people ask for: cancel, revive, pause; and workers that say who they are. Needs base.lua.
-- ARGV: now, mono, what, then: cancel IDS; revive IDS; pause QUEUE 0|1; beat WORKER TEXT;
-- leave WORKER.

local what, answer = ARGV[3], {}

local function cancel(id)
  local H = header(id)
  if not H then return 'missing' end
  local S = state(id)
  if S.st == 'q' then
    end_waiting(id, H, S, CANCELLED)
    return 'cancelled'
  end
  if S.st ~= 'r' then return 'ended' end
  if not S.k then
    S.k = true
    save(id, S)
  end
  return 'requested'
end

-- All or none where a key stands against it.
local function revive()
  local jobs, keys = {}, {}
  for n = 4, #ARGV do
    local id = ARGV[n]
    local H, S = header(id), state(id)
    local fits = H and not jobs[id] and (S.st == 'x' or S.st == 'c')
    answer[#answer + 1] = fits and 1 or 0
    if fits then
      jobs[id] = {H, S}
      if H[11] then
        local field = key_field(H)
        local entry = key_entry(field)
        local holder = keys[field] or (entry and entry.i) or id
        keys[field] = holder
        if holder ~= id then return {'!', id, H[11], holder} end
      end
    end
  end
  for id, job in pairs(jobs) do
    local H, S = job[1], job[2]
    count(H[2], S.st, -1)
    count(H[2], 'q', 1)
    call('ZREM', P .. 'z', id)
    S = {st = 'q', a = 0, t = false, o = true, F = S.F, z = S.z, d = S.d}
    save(id, S)
    if H[11] then take_key(id, H) end
    put(id, H, S)
  end
  return answer
end

local refused = (what == 'cancel' or what == 'revive') and moved()
if refused then return refused end
if what == 'cancel' then
  for n = 4, #ARGV do answer[#answer + 1] = cancel(ARGV[n]) end
elseif what == 'revive' then
  answer = revive()
elseif what == 'pause' then
  call(ARGV[5] == '1' and 'SADD' or 'SREM', P .. 'p', ARGV[4])
  news(ARGV[4])
elseif what == 'beat' then
  sign()
  call('HSET', P .. 'u', ARGV[4], ARGV[5])
  call('ZADD', P .. 'v', now, ARGV[4])
elseif what == 'leave' then
  call('HDEL', P .. 'u', ARGV[4])
  call('ZREM', P .. 'v', ARGV[4])
end
finish()
return answer
