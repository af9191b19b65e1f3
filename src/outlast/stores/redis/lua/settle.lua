-- Settling: each verdict whose receipt still holds its job. Needs base.lua and insert.lua.
-- ARGV: now, mono, again, how many kinds, line and keep of each; how many, then six of each: id,
-- receipt, what (done, retry, back, dead, cancelled), marks (s: it had started, c: the failure is a
-- crash, r: there is a result), delay or if it is done its kind (0: that is not said), failure, result
-- or awaited event; then options and jobs that follow, each with the index of its verdict.
-- Answer: the indexes of those that were not held. With `again` the answer to the same call was
-- lost: what was settled by the same receipt before counts as held, what is gone as settled.

local again, kinds, at = ARGV[3] == '1', {}, 4 + 2 * tonumber(ARGV[4])
for n = 5, at, 2 do
  local keep = tonumber(ARGV[n + 1])
  local till = keep > 0 and string.format('%.17g', now + keep)
  kinds[#kinds + 1] = {line = ARGV[n], till = till, many = 0}
end
at = at + 1
local many = tonumber(ARGV[at])
if ARGV[#ARGV] == '0' then despite_full_memory() end -- nothing follows
local followers, of = read_jobs(at + 6 * many, true), {}
for _, job in ipairs(followers) do
  of[job.after] = of[job.after] or {}
  table.insert(of[job.after], job)
end

local function counted(S, marks)
  if find(marks, 'c') then S.c = (S.c or 0) + 1 else S.f = (S.f or 0) + 1 end
end

local function apply(id, H, S, what, marks, delay, text)
  local started = find(marks, 's')
  if not started then S.a = S.a - 1 end
  if what == 'done' then
    release(id, S)
    ended(id, H, S, 'd', nil, find(marks, 'r') and text or nil)
  elseif what == 'dead' then
    if started then counted(S, marks) end
    release(id, S)
    ended(id, H, S, 'x', text)
  elseif what == 'cancelled' then
    release(id, S)
    ended(id, H, S, 'c', text ~= '' and text or CANCELLED)
  else
    if what == 'retry' then
      counted(S, marks)
      S.F = text
    end
    if started then S.u = nil end
    if what == 'back' and text ~= '' and sent(text) then delay = 0 end
    if delay > 0 then S.t = now + delay end
    requeue(id, H, S)
  end
end

-- What is usual takes a third of that: a job with neither lane nor key, kept for a while, that is done
-- and never asked for more. Its header isn't read, and its state not taken apart.
local NOW, NONE = struct.pack('>d', now), ('\0'):rep(8)

local function apply_plain(id, text, receipt, marks, kind, result)
  if sub(text, 1, 2) ~= 'r\0' then return false end
  local own = 48 + byte(text, 47)
  local by = own + 1 + byte(text, own)
  if sub(text, own + 1, by - 1) ~= receipt then return false end
  local ends = by + 1 + 256 * byte(text, by) + byte(text, by + 1)
  if sub(text, ends + 1) ~= NONE then return false end -- no failure, no progress
  local has = find(marks, 'r')
  saved[id] = (has and 'd\16' or 'd\0') .. sub(text, 3, 22) .. NOW .. sub(text, 31, 46)
    .. sub(text, own, by - 1) .. '\0' .. sub(text, by) .. (has and result or '')
  release(id, {w = sub(text, by + 2, ends)})
  kind.many = kind.many + 1
  over[#over + 1] = id
  if kind.till then
    kept[#kept + 1] = kind.till
    kept[#kept + 1] = id
  end
  return true
end

local function follow(jobs)
  for _, job in ipairs(jobs) do
    local free = call('EXISTS', P .. 'j' .. job.id) == 0
    if free and job.H[11] then free = not key_entry(key_field(job.H)) end
    if free then
      number({{job}})
      insert(job)
      flush()
    end
  end
end

local names, texts = {}, {}
for n = 1, many do names[n] = P .. 's' .. ARGV[at + 6 * n - 5] end
each_chunk(names, 500, function(list, i, j)
  local found = call('MGET', unpack(list, i, j))
  for n = i, j do texts[n] = found[n - i + 1] end
end)

local lost, done = {}, {}
for n = 1, many do
  local first = at + 6 * n - 5
  local id = ARGV[first]
  local text = texts[n]
  if done[id] then text = saved[id] end
  local kind = ARGV[first + 2] == 'done' and kinds[tonumber(ARGV[first + 4])]
  local plain = kind and text
    and apply_plain(id, text, ARGV[first + 1], ARGV[first + 3], kind, ARGV[first + 5])
  local S = not plain and text and unpacked(text)
  if plain then
    done[id] = true
    if of[n] then follow(of[n]) end
  elseif S and S.st == 'r' and S.v == ARGV[first + 1] then
    done[id] = true
    apply(id, header(id), S, ARGV[first + 2], ARGV[first + 3], tonumber(ARGV[first + 4]), ARGV[first + 5])
    if of[n] then follow(of[n]) end
  elseif not again or (S and S.z ~= ARGV[first + 1]) then
    lost[#lost + 1] = n
  end
end
for _, kind in ipairs(kinds) do
  count(kind.line, 'r', -kind.many)
  count(kind.line, 'd', kind.many)
  if kind.many > 0 then room(queue_of(kind.line)) end
end
finish()
return lost
