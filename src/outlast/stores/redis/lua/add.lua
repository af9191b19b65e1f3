-- Adding: the whole batch is planned first, then written. Needs base.lua and insert.lua.
-- ARGV: now, mono, capacity or '', again (1: the answer to the same call was lost), options, jobs.
-- Answer: an empty list when all are new; else one entry a job: 1, {line, body} of one that is
-- stored, {index} of its twin in the batch, or the id that holds its key. Or {'!', why, ...}.

local refused = moved()
if refused then return refused end
local capacity = tonumber(ARGV[3])
local jobs = read_jobs(4, false)
local answers, steps, fresh, keys, replaced, all_new = {}, {}, {}, {}, {}, true

local function waits(holder)
  if fresh[holder] then return true end
  if call('EXISTS', P .. 'j' .. holder) == 0 then return false end
  local S = state(holder)
  return S.st == 'q' and S.a == 0
end

local function repeated(n, job, entry)
  local mode, holder = job.o[15], entry.i
  if mode == 'raise' and holder ~= job.id then return {'!', 'repeated', n, holder} end
  if (mode == 'replace' or mode == 'debounce' or mode == 'throttle') and waits(holder) then
    steps[#steps + 1] = {job, holder}
    local now_holder = holder
    if mode == 'replace' then
      fresh[job.id] = n
      replaced[#replaced + 1] = holder
      now_holder = job.id
    end
    keys[key_field(job.H)] = {i = now_holder, d = job.H[14]}
    answers[n] = now_holder == job.id and 1 or now_holder
    return nil
  end
  if entry.d ~= job.H[14] then return {'!', 'conflict', n, holder} end
  answers[n] = holder
end

local function plan(n, job, stored)
  if stored then
    local H, size = unsealed(stored)
    answers[n] = {H[2], sub(stored, size + 1)}
    return
  end
  if fresh[job.id] then
    answers[n] = {fresh[job.id]}
    return
  end
  if job.H[11] then
    local field = key_field(job.H)
    local entry = keys[field] or key_entry(field)
    if entry then return repeated(n, job, entry) end
    keys[field] = {i = job.id, d = job.H[14]}
  end
  fresh[job.id] = n
  steps[#steps + 1] = {job}
  answers[n] = 1
end

local names = {}
for n, job in ipairs(jobs) do names[n] = P .. 'j' .. job.id end
local known = {}
each_chunk(names, 500, function(list, i, j)
  if call('EXISTS', unpack(list, i, j)) > 0 then
    local found = call('MGET', unpack(list, i, j))
    for n = i, j do known[n] = found[n - i + 1] end
  end
end)
for n, job in ipairs(jobs) do
  local refused = plan(n, job, known[n])
  if refused then return refused end
  if answers[n] ~= 1 then all_new = false end
end

if capacity then
  local more = {}
  for id, n in pairs(fresh) do
    local queue = queue_of(jobs[n].H[2])
    more[queue] = (more[queue] or 0) + 1
  end
  for _, id in ipairs(replaced) do
    local queue = queue_of(fresh[id] and jobs[fresh[id]].H[2] or header(id)[2])
    more[queue] = (more[queue] or 0) - 1
  end
  for queue, n in pairs(more) do
    local queued = 0
    for _, line in ipairs(lines_of(queue)) do
      queued = queued + tonumber(call('HGET', P .. 'n' .. line, 'q') or 0)
    end
    if n > 0 and queued + n > capacity then
      for _, job in ipairs(jobs) do
        local topic = 'r' .. queue_of(job.H[2])
        if call('HEXISTS', P .. 'i', topic) == 0 then call('HSET', P .. 'i', topic, 1) end
      end
      return {'!', 'full', queue, queued}
    end
  end
end

number(steps)
for _, step in ipairs(steps) do
  local job, holder = step[1], step[2]
  if not holder then
    insert(job)
  else
    flush()
    local H, S = header(holder), state(holder)
    if job.o[15] == 'replace' then
      local message = 'replaced by job ' .. job.id
      end_waiting(holder, H, S, cjson.encode({kind = 'cancelled', message = message}))
      insert(job)
    else
      take_out(holder, H, S)
      H[4], H[5], H[12], H[13], H[14] = job.H[4], job.H[5], job.H[12], job.H[13], job.H[14]
      if job.o[15] == 'debounce' then
        H[8], H[9] = job.H[8], job.H[9]
        if S.t ~= nil or S.o then
          S.t, S.o = nil, nil
          save(holder, S)
        end
      end
      call('SET', P .. 'j' .. holder, sealed(H, job.body))
      take_key(holder, H)
      put(holder, H, S)
    end
  end
end
flush()
finish()
return all_new and {} or answers
