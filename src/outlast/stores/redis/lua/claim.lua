-- Claiming: the first jobs in order over all lines asked for. Needs base.lua.
-- ARGV: now, mono, limit, lease, worker, token, newest, again, the server's run if it has taken over
-- from another (else empty), how many lines, then queue and line of each. With `again` the answer to
-- the same call was lost: what it claimed is answered first, looked for among what the worker holds
-- in pieces; '0', then the place where the next one begins.
-- Answer: 1 if there may be more beyond the bound of one call, or such a place, as a text; then id,
-- job and state of each.

if call('HEXISTS', P .. 'm', 'left') == 1 then return {0} end -- all of it goes elsewhere
local limit, lease, worker, token = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]
local newest, again, run, many = ARGV[7] == '1', ARGV[8], ARGV[9], tonumber(ARGV[10])
local answer, claimed, leases, taken = {0}, {}, {}, {}
local till = string.format('%.17g', mono + lease)
local steps = 0

despite_full_memory()

local function receipt(id) return sub(redis.sha1hex(token .. id), 1, 32) end

if again ~= '' then
  local held = call('SSCAN', P .. 'w' .. worker, again, 'COUNT', STEPS)
  for _, id in ipairs(held[2]) do
    local S = state(id)
    if S.st == 'r' and S.v == receipt(id) then
      answer[#answer + 1] = id
      answer[#answer + 1] = call('GET', P .. 'j' .. id)
      answer[#answer + 1] = call('GET', P .. 's' .. id)
      limit = limit - 1
    end
  end
  if held[1] ~= '0' then answer[1] = held[1] end
  if held[1] ~= '0' or limit <= 0 then return answer end
end

-- The heads of a line in the order asked for, without removing any: each a place, and the job there
-- with its state. Those are read a few at a time: never many more than are going to be claimed.

local function head(line, place)
  local group, timed, seq, id = read_place(place)
  return {place = place, group = group, seq = seq, id = id, timed = timed, line = line}
end

local function oldest_of(line, alone)
  local chunk, at, from, ahead, heads, last = {}, 0, 0, alone and 128 or 1, {}, 0
  local function read()
    local names, first = {}, at - 1
    last = math.min(#chunk, first + math.min(ahead, limit - #claimed))
    heads, ahead = {}, math.min(ahead * 2, 128)
    for n = at, last do
      local each = head(line, chunk[n])
      heads[n] = each
      names[2 * (n - first) - 1] = P .. 'j' .. each.id
      names[2 * (n - first)] = P .. 's' .. each.id
    end
    local texts = call('MGET', unpack(names))
    for n = at, last do
      heads[n].text, heads[n].known = texts[2 * (n - first) - 1], texts[2 * (n - first)]
    end
  end
  return function()
    at = at + 1
    if at > #chunk then
      local size = math.min(limit + 1, 128)
      chunk = call('ZRANGE', P .. 'q' .. line.name, from, from + size - 1)
      from, at, last, heads = from + #chunk, 1, 0, {}
    end
    if at > last and at <= #chunk and #claimed < limit then read() end
    return heads[at]
  end
end

-- Newest first within the first group: of what had no due time the last one, of the rest the first
-- in `b`. Each one is removed before the next is asked for.
local function newest_of(line)
  return function()
    local first = call('ZRANGE', P .. 'q' .. line.name, 0, 0)[1]
    if not first then return nil end
    local group = read_place(first)
    local plain = call('ZREVRANGEBYLEX', P .. 'q' .. line.name, '(' .. group .. '\2', '[' .. group .. '\1',
      'LIMIT', 0, 1)[1]
    local timed = call('ZRANGEBYLEX', P .. 'b' .. line.name, '[' .. group, '+', 'LIMIT', 0, 1)[1]
    if timed and sub(timed, 1, #group) == group then
      local seq = 9007199254740991 - struct.unpack('>I8', sub(timed, #group + 1, #group + 8))
      local plain_seq = plain and select(3, read_place(plain)) or -1
      if seq > plain_seq then
        local id = sub(timed, #group + 9)
        plain = place_of(id, header(id), state(id))
      end
    end
    if not plain then return nil end
    local found = head(line, plain)
    found.text, found.known = call('GET', P .. 'j' .. found.id), call('GET', P .. 's' .. found.id)
    return found
  end
end

-- Lua compares strings as the server's language sorts them; here bytes count.
local function precedes(a, b)
  if a.group ~= b.group or not newest then
    local x, y = a.place, b.place
    for n = 1, math.min(#x, #y) do
      local p, q = byte(x, n), byte(y, n)
      if p ~= q then return p < q end
    end
    return #x < #y
  end
  return a.seq > b.seq
end

-- A fence is the server's time in microseconds, or one more than the last: so it grows although a
-- power cut may have taken claims, and the last fence, away. A server that has taken over may lack
-- those as well, and its clock be behind that of the one before: it begins an hour beyond.
local last, fenced = unpack(call('HMGET', P .. 'm', 'fence', 'fenced'))
local fence = math.max(tonumber(last or 0), math.floor(now * 1000000))
if run ~= '' and run ~= fenced then fence = fence + 3600000000 end

local function start(id, H, S)
  local line = H[2]
  count(line, 'q', -1)
  count(line, 'r', 1)
  fence = fence + 1
  S.st, S.a, S.v, S.w, S.b, S.n = 'r', S.a + 1, receipt(id), worker, now, fence
  if H[13] then drop_key(id, H) end
  if H[10] then call('HSET', P .. 'h', H[10], id) end
  if expiry_of(H, S) then call('ZREM', P .. 'x', id) end
  save(id, S)
  leases[#leases + 1] = till
  leases[#leases + 1] = id
  claimed[#claimed + 1] = id
  room(queue_of(line))
end

-- What is usual takes a tenth of that: a job that was never claimed, and has nothing but a body. Its
-- header ends with the line, and its state differs from that of others in fence and receipt alone.
local BEGUN = struct.pack('>c1BI4I4I4dd', 'r', 0, 1, 0, 0, now, -1)
local HELD, BY = struct.pack('>dBB', -1, 0, 32), struct.pack('>I2c0I4I4', #worker, worker, 0, 0)

local function plain_head(line) return struct.pack('>I4', 42 + #line) end

local function start_plain(id)
  fence = fence + 1
  saved[id] = BEGUN .. struct.pack('>d', fence) .. HELD .. receipt(id) .. BY
  leases[#leases + 1] = till
  leases[#leases + 1] = id
  claimed[#claimed + 1] = id
end

for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'x', '-inf', now, 'LIMIT', 0, STEPS)) do
  local H = header(id)
  if H then end_waiting(id, H, state(id), EXPIRED) else call('ZREM', P .. 'x', id) end
end

local lines, more, left = {}, false, STEPS
for n = 1, many do
  local queue, line = ARGV[9 + 2 * n], ARGV[10 + 2 * n]
  if call('SISMEMBER', P .. 'p', queue) == 0 then
    local came, rest = promote(line, left)
    left, more = left - came, more or rest
    local of = {name = line, plain = 0, size = plain_head(line)}
    of.next = newest and newest_of(of) or oldest_of(of, many == 1)
    of.head = of.next()
    if of.head then lines[#lines + 1] = of end
  end
end

local function first_line()
  local best
  for n, line in ipairs(lines) do
    if line.head and (not best or precedes(line.head, best.head)) then best = line end
  end
  return best
end

local function drop(line, at)
  if newest then return withdraw(line, at.place) end
  local of = taken[line]
  if not of then of = {places = {}, timed = {}}; taken[line] = of end
  of.places[#of.places + 1] = at.place
  if at.timed then of.timed[#of.timed + 1] = newest_place(at.group, at.seq, at.id) end
end

local dropped = {}
while #claimed < limit do
  local line = first_line()
  if not line then break end
  steps = steps + 1
  if steps > limit + STEPS then more = true; break end
  local at = line.head
  local text = at.text
  if not text then
    dropped[#dropped + 1] = {'gone', at}
    if newest then withdraw(line.name, at.place) end
  elseif not at.known and sub(text, 1, 4) == line.size then
    line.plain = line.plain + 1
    drop(line.name, at)
    start_plain(at.id)
    answer[#answer + 1] = at.id
    answer[#answer + 1] = text
    answer[#answer + 1] = saved[at.id]
  else
    local H, S = unsealed(text), at.known and unpacked(at.known) or {st = 'q', a = 0}
    local expiry, holder = expiry_of(H, S), H[10] and call('HGET', P .. 'h', H[10])
    if expiry and expiry <= now then
      if newest then end_waiting(at.id, H, S, EXPIRED) else dropped[#dropped + 1] = {'old', at, H, S} end
    elseif holder and holder ~= at.id then
      if newest then park(at.id, H, at.place) else dropped[#dropped + 1] = {'held', at, H} end
    else
      drop(line.name, at)
      start(at.id, H, S)
      answer[#answer + 1] = at.id
      answer[#answer + 1] = text
      answer[#answer + 1] = saved[at.id]
    end
  end
  line.head = line.next()
end

for _, line in ipairs(lines) do
  if line.plain > 0 then
    count(line.name, 'q', -line.plain)
    count(line.name, 'r', line.plain)
    room(queue_of(line.name))
  end
end
for line, of in pairs(taken) do
  each_chunk(of.places, 500, function(list, i, j) call('ZREM', P .. 'q' .. line, unpack(list, i, j)) end)
  each_chunk(of.timed, 500, function(list, i, j) call('ZREM', P .. 'b' .. line, unpack(list, i, j)) end)
end
for _, each in ipairs(dropped) do
  local what, at, H, S = unpack(each, 1, 4)
  if what == 'gone' then withdraw(at.line.name, at.place)
  elseif what == 'old' then end_waiting(at.id, H, S, EXPIRED)
  elseif call('HGET', P .. 'h', H[10]) then park(at.id, H, at.place)
  else more = true end -- the holder has just ended
end
lease_all(leases)
each_chunk(claimed, 500, function(list, i, j) call('SADD', P .. 'w' .. worker, unpack(list, i, j)) end)
if #claimed > 0 then
  call('HSET', P .. 'm', 'fence', string.format('%.0f', fence))
  if run ~= '' then call('HSET', P .. 'm', 'fenced', run) end
  if lease > tonumber(call('HGET', P .. 'm', 'lease') or 0) then call('HSET', P .. 'm', 'lease', lease) end
end
finish()
if #claimed < limit then
  -- From now on whoever brings work says so.
  for n = 1, many do
    local topic = 'w' .. ARGV[9 + 2 * n]
    if call('HEXISTS', P .. 'i', topic) == 0 then call('HSET', P .. 'i', topic, 1) end
  end
end
answer[1] = more and 1 or 0
return answer
