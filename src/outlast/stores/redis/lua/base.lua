-- What every script begins with: the key layout, jobs as they are stored, and each step of a life.
--
-- KEYS[1] is the prefix P, "{outlast:NAMESPACE}": one hash tag, so one cluster slot holds it all.
-- A line is QUEUE/TASK, or QUEUE for items without a task; neither name can hold a slash.
--
--   P m          hash     seq (of the newest job), schema, run (of the server), since (when that was
--                         first seen, unless it is the first), long (a run that is being seen, and
--                         until when its leases last at least), lease (the longest), fence (the last),
--                         fenced (the last run that raised it by an hour), event (how many woke somebody), ack (how often somebody waited for a
--                         sync), mark and left (the jobs are moved elsewhere, how far)
--   P g          set      all lines that were ever used;  P g QUEUE: those of one queue
--   P n LINE     hash     counts: q(ueued), r(unning), d(one), x (dead), c(ancelled)
--   P j ID       string   a job as it was added: header, body (the client's own)
--   P s ID       string   what became of it since: state, result. None: it just waits
--   P t          stream   ids by seq, for those who look through everything
--   P q LINE     zset     what is due, by place: all scores are 0, so bytes decide
--   P b LINE     zset     of these, what had a due time, newest first
--   P l LINE     zset     what is due later: place by due time
--   P k LANE     zset     due, but another job holds the lane: LINE NUL place
--   P o LINE     zset     the same jobs, each with the moment it was added
--   P h          hash     who holds a lane: the one that runs, or has begun and will run again
--   P e          zset     leases: running ids by the moment when nobody believes in them any more;
--                         and a long member that is no id
--   P w WORKER   set      the ids that a worker holds
--   P x          zset     waiting ids by the moment when they expire
--   P z          zset     ended ids by the moment when they are forgotten
--   P y          hash     TASK NUL KEY: who holds an idempotency key
--   P f          zset     keys of ended jobs by the moment when they are forgotten
--   P p          set      paused queues
--   P i          hash     somebody sleeps and wants to hear of: w QUEUE (work), r QUEUE (room)
--   P a          hash     somebody waits for the end of: ID
--   P u, P v     hash     workers: what they say of themselves; zset: when they last said it
--   P d ID       hash     steps: NAME: until when, length, the event that is waited for, the client's
--   P D          set      steps of jobs that are gone, which `prune` has still to forget: ID NUL seq;
--                         P D ID NUL seq: those of one, as in P d ID
--   P c EVENT    zset     who waits for an event, as ID NUL NAME: by the last event it has seen
--   P r, P R     hash     events: until when, token, payload; zset: when they are forgotten
--   P W          zset     events that have still to wake somebody, by their number
--   P M          hash     moves that come in: up to where
--   P S, P T     hash     the shelf: KEY: until when, value; zset: when what passes away does
--   P U          zset     all keys of the shelf, in order
--
-- Outside of P, where the server is no cluster: outlast:namespaces, a set of those ever used.
--
-- A place is, as bytes: 100 - priority; rank, NUL escaped; NUL; then for what had a due time NUL and
-- that time, else 1; seq; ID. The channel P tells those who sleep: lines of w QUEUE, r QUEUE, j ID.
--
-- Nothing is written before all of a call is known to be right: a script that fails after its first
-- write would leave half of it behind. Loops are bounded by what the caller asks for.

local call = redis.call
local char, byte, sub, find = string.char, string.byte, string.sub, string.find
local P, now, mono = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
if not now then
  local time = call('TIME')
  now = time[1] + time[2] / 1000000
  mono = now
end

local STEPS = 1000
local EXPIRED = '{"kind":"expired","message":"never started"}'
local CANCELLED = '{"kind":"cancelled"}'

-- Small things

local function unhex(text)
  return (text:gsub('..', function(pair) return char(tonumber(pair, 16)) end))
end

local function ordered(number)
  local bytes = struct.pack('>d', number)
  if byte(bytes) < 128 then return char(byte(bytes) + 128) .. sub(bytes, 2) end
  return (bytes:gsub('.', function(each) return char(255 - byte(each)) end))
end

local queues = {}
local function queue_of(line)
  local queue = queues[line]
  if not queue then
    queue = line:match('^[^/]+')
    queues[line] = queue
  end
  return queue
end

local function each_chunk(list, size, act)
  for first = 1, #list, size do act(list, first, math.min(first + size - 1, #list)) end
end

-- Jobs. Header: 1 seq, 2 line, 3 created, 4 keep (-1: for ever), 5 max_crashes (-1: no limit); if it
-- is more than plain: 6 priority, 7 rank as hex, 8 run_at, 9 expires_at, 10 lane, 11 key,
-- 12 keep_key, 13 key_queued, 14 digest as hex, with false for none.
--
-- State: st(atus), a(ttempt), f(ailures), c(rashes), u (suspect), v (receipt), z (the one before),
-- w(orker), n (fence), b(egan), e(nded), k (a cancel was asked for), F(ailure), G (progress), R (a result
-- follows), t (due instead of run_at, or false), o (expires_at is void), d (there are steps).

-- Both are bytes of fixed places, which cost a third of what maps do: a header and the body that
-- follows; a state and the result that follows. Moments that are none are -1; for `t`, false is -2.

local HEADER = '>I4ddddI2c0I4c0'

local function sealed(H, body)
  local line, more = H[2], ''
  if H[6] then more = cmsgpack.pack({H[6], H[7], H[8], H[9], H[10], H[11], H[12], H[13], H[14]}) end
  local size = 42 + #line + #more
  return struct.pack(HEADER, size, H[1], H[3], H[4], H[5], #line, line, #more, more) .. body
end

local function unsealed(text)
  local size, seq, created, keep, max_crashes, line, more = struct.unpack(HEADER, text)
  local H = {seq, line, created, keep, max_crashes}
  if more ~= '' then
    for n, value in ipairs(cmsgpack.unpack(more)) do H[5 + n] = value end
  end
  return H, size
end

local function header(id)
  local text = call('GETRANGE', P .. 'j' .. id, 0, 511)
  if text == '' then return nil end
  if struct.unpack('>I4', text) > 512 then text = call('GET', P .. 'j' .. id) end
  return (unsealed(text))
end

local STATE = '>c1BI4I4I4ddddI1c0I1c0I2c0I4c0I4c0'

local function packed(S, result)
  local flags = (S.u and 1 or 0) + (S.k and 2 or 0) + (S.o and 4 or 0) + (S.d and 8 or 0)
  local t, z, v, w, F, G = S.t, S.z or '', S.v or '', S.w or '', S.F or '', S.G or ''
  if t == nil then t = -1 elseif t == false then t = -2 end
  return struct.pack(STATE, S.st, flags + (S.R and 16 or 0), S.a, S.f or 0, S.c or 0, S.b or -1,
    S.e or -1, S.n or -1, t, #z, z, #v, v, #w, w, #F, F, #G, G) .. (result or '')
end

local function unpacked(text)
  local st, flags, a, f, c, b, e, n, t, z, v, w, F, G = struct.unpack(STATE, text)
  local S = {st = st, a = a, f = f, c = c, b = b >= 0 and b or nil, e = e >= 0 and e or nil,
    n = n >= 0 and n or nil, z = z ~= '' and z or nil, v = v ~= '' and v or nil,
    w = w ~= '' and w or nil, F = F ~= '' and F or nil, G = G ~= '' and G or nil}
  if t >= 0 then S.t = t elseif t == -2 then S.t = false end
  if flags > 0 then
    S.u, S.k, S.o = flags % 2 >= 1 or nil, flags % 4 >= 2 or nil, flags % 8 >= 4 or nil
    S.d, S.R = flags % 16 >= 8 or nil, flags >= 16 or nil
  end
  return S
end

local saved = {} -- states that are written at the end

local function state(id)
  local text = saved[id] or call('GET', P .. 's' .. id)
  if not text then return {st = 'q', a = 0} end
  return unpacked(text)
end

local function save(id, S, result)
  saved[id] = packed(S, result)
end

local function due_of(H, S)
  if S.t ~= nil then return S.t end
  return H[8]
end

local function expiry_of(H, S) return not S.o and H[9] end

local function group_of(H)
  local rank = H[7] or ''
  if rank ~= '' then rank = unhex(rank):gsub('%z', '\0\255') end
  return char(100 - (H[6] or 0)) .. rank .. '\0'
end

local function place_of(id, H, S)
  local due = due_of(H, S)
  local seq = struct.pack('>I8', H[1])
  if due then return group_of(H) .. '\0' .. ordered(due) .. seq .. id end
  return group_of(H) .. '\1' .. seq .. id
end

-- What a place says: its group, whether it had a due time, its seq, its id.
local function read_place(place)
  local at = find(place, '%z[%z\1]', 2)
  local timed = byte(place, at + 1) == 0
  local seq = at + (timed and 10 or 2)
  return sub(place, 1, at), timed, struct.unpack('>I8', place, seq), sub(place, seq + 8)
end

local function newest_place(group, seq, id)
  return group .. struct.pack('>I8', 9007199254740991 - seq) .. id
end

-- What is gathered while a script runs and written at its end, in few calls.

local counts, unleased, released, topics, over, kept = {}, {}, {}, {}, {}, {}

local function count(line, name, more)
  local of = counts[line]
  if not of then of = {}; counts[line] = of end
  of[name] = (of[name] or 0) + more
end

local function news(queue) topics['w' .. queue] = true end
local function room(queue) topics['r' .. queue] = true end

local function release(id, S)
  unleased[#unleased + 1] = id
  local of = released[S.w]
  if not of then of = {}; released[S.w] = of end
  of[#of + 1] = id
end

local function tell()
  local told = {}
  if next(topics) and call('HLEN', P .. 'i') > 0 then
    for topic in pairs(topics) do
      if call('HDEL', P .. 'i', topic) == 1 then told[#told + 1] = topic end
    end
  end
  if #over > 0 and call('HLEN', P .. 'a') > 0 then
    for _, id in ipairs(over) do
      if call('HDEL', P .. 'a', id) == 1 then told[#told + 1] = 'j' .. id end
    end
  end
  if #told > 0 then call('PUBLISH', P, table.concat(told, '\n')) end
end

-- A small sorted set is a list that is searched for each member: a long member ends that.
local LONG = ('-'):rep(65)

local function lease_all(leases)
  if #leases > 40 then
    leases[#leases + 1] = 'inf'
    leases[#leases + 1] = LONG
  end
  each_chunk(leases, 500, function(list, i, j) call('ZADD', P .. 'e', unpack(list, i, j)) end)
end

local function finish()
  local texts = {}
  for id, text in pairs(saved) do
    texts[#texts + 1] = P .. 's' .. id
    texts[#texts + 1] = text
  end
  each_chunk(texts, 500, function(list, i, j) call('MSET', unpack(list, i, j)) end)
  each_chunk(unleased, 500, function(ids, i, j) call('ZREM', P .. 'e', unpack(ids, i, j)) end)
  for worker, all in pairs(released) do
    each_chunk(all, 500, function(ids, i, j) call('SREM', P .. 'w' .. worker, unpack(ids, i, j)) end)
  end
  for line, of in pairs(counts) do
    for name, more in pairs(of) do
      if more ~= 0 then call('HINCRBY', P .. 'n' .. line, name, more) end
    end
  end
  each_chunk(kept, 500, function(ids, i, j) call('ZADD', P .. 'z', unpack(ids, i, j)) end)
  tell()
  saved, counts, unleased, released, topics, over, kept = {}, {}, {}, {}, {}, {}, {}
end

-- What is changed in a store whose jobs were moved elsewhere would be lost: the error to answer.
local function moved()
  local left = call('HGET', P .. 'm', 'left')
  if not left or left == 'draining' then return nil end
  local to = cjson.decode(call('HGET', P .. 'm', 'mark')).to
  return redis.error_reply('OUTLASTMOVED ' .. to)
end

-- A server without memory refuses the first write of a script if that may take some, but none after
-- another write. What gets rid of jobs in the end must work then, too.
local function despite_full_memory() call('HDEL', P .. 'i', '') end

-- Idempotency keys

local function key_field(H)
  return (H[2]:match('/(.*)$') or '') .. '\0' .. H[11]
end

local function key_entry(field)
  local text = call('HGET', P .. 'y', field)
  if not text then return nil end
  local entry = cmsgpack.unpack(text)
  if entry.u and entry.u <= now then return nil end
  return entry
end

local function forget_key(field)
  call('HDEL', P .. 'y', field)
  call('ZREM', P .. 'f', field)
end

local function take_key(id, H)
  local field = key_field(H)
  call('ZREM', P .. 'f', field)
  call('HSET', P .. 'y', field, cmsgpack.pack({i = id, d = H[14]}))
end

local function drop_key(id, H)
  if not H[11] then return end
  local field = key_field(H)
  local text = call('HGET', P .. 'y', field)
  if text and cmsgpack.unpack(text).i == id then forget_key(field) end
end

local function remember_key(id, H)
  if not H[11] then return end
  local field = key_field(H)
  local text = call('HGET', P .. 'y', field)
  if not text then return end
  local entry = cmsgpack.unpack(text)
  if entry.i ~= id then return end
  if H[12] <= 0 then return forget_key(field) end
  entry.u = now + H[12]
  call('HSET', P .. 'y', field, cmsgpack.pack(entry))
  call('ZADD', P .. 'f', entry.u, field)
end

-- Waiting in place, and lanes

local function offer(line, place)
  call('ZADD', P .. 'q' .. line, 0, place)
  local group, timed, seq, id = read_place(place)
  if timed then call('ZADD', P .. 'b' .. line, 0, newest_place(group, seq, id)) end
end

local function withdraw(line, place)
  if call('ZREM', P .. 'q' .. line, place) == 0 then return false end
  local group, timed, seq, id = read_place(place)
  if timed then call('ZREM', P .. 'b' .. line, newest_place(group, seq, id)) end
  return true
end

local function put(id, H, S)
  local line, due, expiry = H[2], due_of(H, S), expiry_of(H, S)
  if due and due > now then
    call('ZADD', P .. 'l' .. line, due, place_of(id, H, S))
  else
    offer(line, place_of(id, H, S))
  end
  if expiry then call('ZADD', P .. 'x', expiry, id) end
  news(queue_of(line))
end

local function take_out(id, H, S)
  local line, place = H[2], place_of(id, H, S)
  if not withdraw(line, place) and call('ZREM', P .. 'l' .. line, place) == 0 and H[10] then
    call('ZREM', P .. 'k' .. H[10], line .. '\0' .. place)
    call('ZREM', P .. 'o' .. line, id)
  end
  if expiry_of(H, S) then call('ZREM', P .. 'x', id) end
end

-- Another job holds its lane: it is passed over until that changes.
local function park(id, H, place)
  withdraw(H[2], place)
  call('ZADD', P .. 'k' .. H[10], 0, H[2] .. '\0' .. place)
  call('ZADD', P .. 'o' .. H[2], H[3], id)
end

-- A lane is free: one job of each line may be taken; the others could not start beside it anyway.
local function let_go(lane)
  local from = '-'
  while true do
    local first = call('ZRANGEBYLEX', P .. 'k' .. lane, from, '+', 'LIMIT', 0, 1)[1]
    if not first then return end
    local at = find(first, '%z')
    local line, place = sub(first, 1, at - 1), sub(first, at + 1)
    call('ZREM', P .. 'k' .. lane, first)
    local _, _, _, id = read_place(place)
    call('ZREM', P .. 'o' .. line, id)
    offer(line, place)
    news(queue_of(line))
    from = '[' .. line .. '\1'
  end
end

local function leave_lane(id, H)
  local lane = H[10]
  if not lane then return end
  local holder = call('HGET', P .. 'h', lane)
  if holder == id then
    call('HDEL', P .. 'h', lane)
    holder = false
  end
  if not holder then let_go(lane) end
end

-- At most so many that have come due go among the others; how many did, and whether there may be more.
local function promote(line, limit)
  local due = call('ZRANGEBYSCORE', P .. 'l' .. line, '-inf', now, 'LIMIT', 0, limit)
  for _, place in ipairs(due) do
    call('ZREM', P .. 'l' .. line, place)
    offer(line, place)
  end
  if #due > 0 then news(queue_of(line)) end
  return #due, #due == limit
end

-- Steps and events

local function awaited(step)
  local size = select(2, struct.unpack('>dI4', step))
  return sub(step, 13, 12 + size)
end

-- The steps of a job that is removed. One call forgets so many; the rest is put aside.
local forgettable = STEPS

local function forget_steps(id, seq)
  local key = P .. 'd' .. id
  local many = call('HLEN', key)
  if many > forgettable then
    local gone = id .. '\0' .. seq
    call('RENAME', key, P .. 'D' .. gone)
    call('SADD', P .. 'D', gone)
    return
  end
  forgettable = forgettable - many
  local steps = call('HGETALL', key)
  for n = 1, #steps, 2 do
    local event = awaited(steps[n + 1])
    if event ~= '' then call('ZREM', P .. 'c' .. event, id .. '\0' .. steps[n]) end
  end
  call('UNLINK', key)
end

-- At most so many of the steps that were put aside are forgotten; how many.
local function forget_more(limit)
  local gone = call('SRANDMEMBER', P .. 'D')
  if not gone then return 0 end
  local id, key, names = gone:match('^%Z+'), P .. 'D' .. gone, {}
  local steps = call('HRANDFIELD', key, limit, 'WITHVALUES')
  for n = 1, #steps, 2 do
    local name, event = steps[n], awaited(steps[n + 1])
    names[#names + 1] = name
    -- A job that was moved away, and back, may wait again.
    if event ~= '' and call('HEXISTS', P .. 'd' .. id, name) == 0 then
      call('ZREM', P .. 'c' .. event, id .. '\0' .. name)
    end
  end
  each_chunk(names, 500, function(list, i, j) call('HDEL', key, unpack(list, i, j)) end)
  if call('EXISTS', key) == 0 then call('SREM', P .. 'D', gone) end
  return #names
end

-- The payload of an event that is remembered, and the token of the call that sent it.
local function sent(event)
  local text = call('HGET', P .. 'r', event)
  if not text or struct.unpack('>d', text) <= now then return nil end
  return sub(text, 25), sub(text, 9, 24)
end

-- At most so many of those who wait for events that were sent go on; whether there may be more.
local function wake_waiting(limit)
  local event, number = unpack(call('ZRANGE', P .. 'W', 0, 0, 'WITHSCORES'))
  if not event then return false end
  local members = call('ZRANGEBYSCORE', P .. 'c' .. event, '-inf', '(' .. number, 'LIMIT', 0, limit)
  for _, member in ipairs(members) do
    call('ZADD', P .. 'c' .. event, number, member)
    local id = member:match('^%Z+')
    local H, S = header(id), state(id)
    local due = H and S.st == 'q' and due_of(H, S)
    if due and due > now then
      take_out(id, H, S)
      S.t = false
      save(id, S)
      put(id, H, S)
    end
  end
  if #members < limit then call('ZREM', P .. 'W', event) end
  return call('EXISTS', P .. 'W') == 1
end

-- The ends of jobs

local function remove(id, H, S)
  if S.d then forget_steps(id, H[1]) end
  saved[id] = nil
  call('UNLINK', P .. 'j' .. id, P .. 's' .. id)
  call('XDEL', P .. 't', H[1] .. '-0')
  count(H[2], S.st, -1)
  room(queue_of(H[2]))
  over[#over + 1] = id
end

-- It has been released, or taken out.
local function ended(id, H, S, status, failure, result)
  count(H[2], S.st, -1)
  count(H[2], status, 1)
  S.st, S.e, S.F, S.z, S.v, S.k = status, now, failure, S.v or S.z, nil, nil
  S.R = result and true or nil
  leave_lane(id, H)
  remember_key(id, H)
  room(queue_of(H[2]))
  over[#over + 1] = id
  local keep = H[4]
  if status ~= 'x' and keep == 0 then return remove(id, H, S) end
  if status ~= 'x' and keep > 0 then
    kept[#kept + 1] = now + keep
    kept[#kept + 1] = id
  end
  save(id, S, result)
end

local function end_waiting(id, H, S, failure)
  take_out(id, H, S)
  ended(id, H, S, 'c', failure)
end

-- What was running comes back, or is cancelled if somebody asked for that.
local function requeue(id, H, S)
  release(id, S)
  if S.k then return ended(id, H, S, 'c', CANCELLED) end
  count(H[2], 'r', -1)
  count(H[2], 'q', 1)
  S.st, S.z, S.v, S.w = 'q', S.v, nil, nil
  if H[10] and S.a == 0 then
    call('HDEL', P .. 'h', H[10])
    let_go(H[10])
  end
  save(id, S)
  put(id, H, S)
  room(queue_of(H[2]))
end

local function crash(id, H, S, failure)
  S.c, S.u, S.F = (S.c or 0) + 1, true, failure
  if H[5] >= 0 and S.c >= H[5] then
    release(id, S)
    ended(id, H, S, 'x', failure)
  else
    requeue(id, H, S)
  end
end

-- In a cluster that key is elsewhere, and the namespaces can't be listed.
local function sign() redis.pcall('SADD', 'outlast:namespaces', sub(P, 10, -2)) end

local function lines_of(queue) return call('SMEMBERS', P .. 'g' .. queue) end
