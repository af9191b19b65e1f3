-- Moving out and moving in: the mark on a namespace that is left, and bites of jobs between stores.
-- Needs base.lua and insert.lua.
-- ARGV: now, mono, what, then: mark; depart STAGE BEFORE MARK; stay MARK; discard LIMIT; expect MOVE;
-- arrived MOVE; unexpect MOVE; pack all|events|keys|jobs PLACE LIMIT BYTES; unpack, see there.
-- Where another mark stands than the one before: '!'.

local what, answer = ARGV[3], {}

local function running()
  local many = 0
  for _, line in ipairs(call('SMEMBERS', P .. 'g')) do
    many = many + tonumber(call('HGET', P .. 'n' .. line, 'r') or 0)
  end
  return many
end

-- Also where memory is full: that may be why it is left.
local function depart(stage, before, mark)
  despite_full_memory()
  local found = call('HGET', P .. 'm', 'mark') or ''
  if found ~= before and found ~= mark then return '!' end
  local many = running()
  if many > 0 and stage ~= 'draining' then return many end
  call('HSET', P .. 'm', 'mark', mark, 'left', stage)
  return many
end

local function stay(mark)
  if call('HGET', P .. 'm', 'mark') ~= mark then return 0 end
  call('HDEL', P .. 'm', 'mark', 'left')
  for _, line in ipairs(call('SMEMBERS', P .. 'g')) do news(queue_of(line)) end
  return 1
end

-- Answer of jobs: now, the last fence, then seq, id, job, state and steps of each.
local function pack_jobs(place, limit, bytes)
  answer = {string.format('%.17g', now), call('HGET', P .. 'm', 'fence') or '0'}
  local size = 0
  for _, entry in ipairs(call('XRANGE', P .. 't', '(' .. place .. '-0', '+', 'COUNT', limit)) do
    local id = entry[2][2]
    local job, text = call('GET', P .. 'j' .. id), call('GET', P .. 's' .. id)
    if job then
      answer[#answer + 1] = entry[1]:match('^%d+')
      answer[#answer + 1] = id
      answer[#answer + 1] = job
      answer[#answer + 1] = text
      local steps = text and state(id).d and call('HGETALL', P .. 'd' .. id) or {}
      answer[#answer + 1] = steps
      size = size + #job + (text and #text or 0)
      for _, each in ipairs(steps) do size = size + #each end
    end
    if size > bytes then break end
  end
end

-- Answer: how many, and 1 if there is more beside jobs.
local function discard(limit)
  local all = call('XRANGE', P .. 't', '-', '+', 'COUNT', limit)
  for _, entry in ipairs(all) do
    local id = entry[2][2]
    local H, S = header(id), state(id)
    if H then
      if S.st == 'q' then
        take_out(id, H, S)
        leave_lane(id, H)
      else
        call('ZREM', P .. 'z', id)
      end
      remove(id, H, S)
    else
      call('XDEL', P .. 't', entry[1])
    end
  end
  if #all == 0 then
    if forget_more(limit) > 0 then return {0, 1} end
    for _, name in ipairs({'y', 'f', 'r', 'R', 'W', 'h'}) do call('UNLINK', P .. name) end
  end
  return {#all, 0}
end

-- ARGV from 4 on: move, after, upto, fence; how many, then pauses; events as NAME UNTIL PAYLOAD; keys
-- as FIELD JOB DIGEST UNTIL|''; jobs as ID HEADER STATE BODY RESULT|'', how many steps, then NAME
-- LEFT|'' EVENT|'' BYTES of each; and what `read_jobs` reads, of new jobs.
-- Answer: the place, how many were known, and how many came without their key.

local at = 4
local function take()
  local value = ARGV[at]
  at = at + 1
  return value
end
local function number_of() return tonumber(take()) end
local function moment() local text = take(); return text ~= '' and tonumber(text) or nil end

local function take_pauses()
  for _ = 1, number_of() do call('SADD', P .. 'p', take()) end
end

local function take_events()
  for _ = 1, number_of() do
    local name, till, payload = take(), number_of(), take()
    local text = struct.pack('>d', till) .. ('\0'):rep(16) .. payload
    if call('HSETNX', P .. 'r', name, text) == 1 then call('ZADD', P .. 'R', till, name) end
  end
end

local function take_keys()
  for _ = 1, number_of() do
    local field, id, digest, till = take(), take(), take(), moment()
    if not key_entry(field) then
      call('HSET', P .. 'y', field, cmsgpack.pack({i = id, d = digest, u = till}))
      call('ZREM', P .. 'f', field)
      if till then call('ZADD', P .. 'f', till, field) end
    end
  end
end

local function has_its_key(id, H, S)
  if not H[11] or S.st ~= 'q' or (H[13] and S.a > 0) then return true end
  local entry = key_entry(key_field(H))
  return entry and entry.i == id
end

local function take_steps(id, many)
  local woken = false
  for _ = 1, many do
    local name, left, event, own = take(), moment(), take(), take()
    local till = left and now + left or math.huge
    call('HSET', P .. 'd' .. id, name, struct.pack('>dI4', till, #event) .. event .. own)
    if event ~= '' then
      call('ZADD', P .. 'c' .. event, call('HGET', P .. 'm', 'event') or 0, id .. '\0' .. name)
      if sent(event) then woken = true end
    end
  end
  return woken
end

local function take_jobs()
  local known, keyless = 0, 0
  for _ = 1, number_of() do
    local id, H, S, body, result = take(), cmsgpack.unpack(take()), cmsgpack.unpack(take()), take(), take()
    local many = number_of()
    if call('EXISTS', P .. 'j' .. id) == 1 then
      known = known + 1
      at = at + 4 * many
    else
      if not has_its_key(id, H, S) then
        H[11] = false
        keyless = keyless + 1
      end
      H[1] = call('HINCRBY', P .. 'm', 'seq', 1)
      if take_steps(id, many) then H[8] = false end
      if many > 0 then S.d = true end
      use_line(H[2])
      count(H[2], S.st, 1)
      call('SET', P .. 'j' .. id, sealed(H, body))
      call('XADD', P .. 't', H[1] .. '-0', 'i', id)
      save(id, S, S.R and result or nil)
      if S.st == 'q' then
        if H[10] and S.a > 0 then call('HSETNX', P .. 'h', H[10], id) end
        put(id, H, S)
      elseif S.st ~= 'x' and H[4] >= 0 then
        kept[#kept + 1] = S.e + H[4]
        kept[#kept + 1] = id
      end
    end
  end
  return known, keyless
end

local function take_new()
  for _, job in ipairs(read_jobs(at - 1, false)) do
    local free = call('EXISTS', P .. 'j' .. job.id) == 0
    if free and job.H[11] then free = not key_entry(key_field(job.H)) end
    if free then
      number({{job}})
      insert(job)
      flush()
    end
  end
end

local function unpack_crate()
  local move, after, upto, fence = take(), take(), take(), number_of()
  local place = call('HGET', P .. 'M', move)
  if not place then return {'!'} end
  if place ~= after then return {place, 0, 0} end
  call('HSET', P .. 'M', move, upto)
  if fence > tonumber(call('HGET', P .. 'm', 'fence') or 0) then
    call('HSET', P .. 'm', 'fence', string.format('%.0f', fence))
  end
  take_pauses()
  take_events()
  take_keys()
  local known, keyless = take_jobs()
  take_new()
  return {upto, known, keyless}
end

if what == 'mark' then answer = call('HGET', P .. 'm', 'mark')
elseif what == 'depart' then answer = depart(ARGV[4], ARGV[5], ARGV[6])
elseif what == 'stay' then answer = stay(ARGV[4])
elseif what == 'discard' then answer = discard(tonumber(ARGV[4]))
elseif what == 'expect' then call('HSETNX', P .. 'M', ARGV[4], '')
elseif what == 'arrived' then answer = call('HGET', P .. 'M', ARGV[4])
elseif what == 'unexpect' then call('HDEL', P .. 'M', ARGV[4])
elseif what == 'unpack' then answer = unpack_crate()
elseif ARGV[4] == 'all' then answer = call('SMEMBERS', P .. 'p')
elseif ARGV[4] == 'events' then answer = call('HSCAN', P .. 'r', ARGV[5], 'COUNT', ARGV[6])
elseif ARGV[4] == 'keys' then answer = call('HSCAN', P .. 'y', ARGV[5], 'COUNT', ARGV[6])
else pack_jobs(ARGV[5], ARGV[6], tonumber(ARGV[7])) end
finish()
return answer
