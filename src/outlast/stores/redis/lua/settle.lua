-- Settling: each verdict whose receipt still holds its job. Needs base.lua and insert.lua.
-- ARGV: now, mono, again, how many, then six of each: id, receipt, what (done, retry, back, dead,
-- cancelled), marks (s: it had started, c: the failure is a crash, r: there is a result), delay,
-- failure, result or
-- awaited event; then options and jobs that follow, each with the index of its verdict.
-- Answer: the indexes of those that were not held. With `again` the answer to the same call was
-- lost: what was settled by the same receipt before counts as held, what is gone as settled.

local again, many = ARGV[3] == '1', tonumber(ARGV[4])
if ARGV[#ARGV] == '0' then despite_full_memory() end -- nothing follows
local followers, of = read_jobs(4 + 6 * many, true), {}
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
for n = 1, many do names[n] = P .. 's' .. ARGV[6 * n - 1] end
each_chunk(names, 500, function(list, i, j)
  local found = call('MGET', unpack(list, i, j))
  for n = i, j do texts[n] = found[n - i + 1] end
end)

local lost, done = {}, {}
for n = 1, many do
  local first = 6 * n - 1
  local id = ARGV[first]
  local text = texts[n]
  if done[id] then text = saved[id] end
  local S = text and unpacked(text)
  if S and S.st == 'r' and S.v == ARGV[first + 1] then
    done[id] = true
    apply(id, header(id), S, ARGV[first + 2], ARGV[first + 3], tonumber(ARGV[first + 4]), ARGV[first + 5])
    if of[n] then follow(of[n]) end
  elseif not again or (S and S.z ~= ARGV[first + 1]) then
    lost[#lost + 1] = n
  end
end
finish()
return lost
