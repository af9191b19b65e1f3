-- New jobs: reading them from ARGV and writing them in few calls. Needs base.lua.
-- ARGV from `at` on: how many options, the options; how many jobs, then id, option, body of each.
-- Options: 1 queue, 2 task, 3 keep, 4 max_crashes, and if it is more than plain: 5 priority,
-- 6 rank as hex, 7 delay, 8 run_at, 9 ttl, 10 expires_at, 11 lane, 12 key, 13 keep_key,
-- 14 key_queued, 15 on_repeat, 16 digest as hex; false for none.

local function read_jobs(at, followers)
  local options, jobs = {}, {}
  at = at + 1
  local many = tonumber(ARGV[at])
  for n = 1, many do options[n] = cmsgpack.unpack(ARGV[at + n]) end
  at = at + many + 1
  local width = followers and 4 or 3
  for n = 0, tonumber(ARGV[at]) - 1 do
    local first = at + n * width + 1
    local o = options[tonumber(ARGV[first + 1])]
    local H = {0, o[2] and (o[1] .. '/' .. o[2]) or o[1], now, o[3], o[4]}
    if o[5] then
      H[6], H[7] = o[5], o[6]
      H[8] = o[7] and o[7] > 0 and now + o[7] or o[8]
      if o[9] then H[9] = now + o[9] else H[9] = o[10] end
      H[10], H[11], H[12], H[13], H[14] = o[11], o[12], o[13], o[14], o[16]
    end
    jobs[n + 1] = {id = ARGV[first], o = o, H = H, body = ARGV[first + 2],
      after = followers and tonumber(ARGV[first + 3])}
  end
  return jobs
end

local new_jobs, new_places = {}, {}

-- Give seqs to what is going to be inserted, in order.
local function number(steps)
  local fresh = 0
  for _, step in ipairs(steps) do
    if not step[2] or step[1].o[15] == 'replace' then fresh = fresh + 1 end
  end
  if fresh == 0 then return end
  local seq = call('HINCRBY', P .. 'm', 'seq', fresh) - fresh
  for _, step in ipairs(steps) do
    if not step[2] or step[1].o[15] == 'replace' then
      seq = seq + 1
      step[1].H[1] = seq
    end
  end
end

local function use_line(line)
  if counts[line] or call('EXISTS', P .. 'n' .. line) == 1 then return end
  sign()
  call('SADD', P .. 'g', line)
  call('SADD', P .. 'g' .. queue_of(line), line)
  call('HSET', P .. 'n' .. line, 'q', 0)
end

-- What stands in H already has its seq; its id and its key are free.
local function insert(job)
  local id, H = job.id, job.H
  local line = H[2]
  use_line(line)
  count(line, 'q', 1)
  new_jobs[#new_jobs + 1] = P .. 'j' .. id
  new_jobs[#new_jobs + 1] = sealed(H, job.body)
  call('XADD', P .. 't', H[1] .. '-0', 'i', id)
  if H[11] then take_key(id, H) end
  if H[8] or H[9] then
    put(id, H, {})
  else
    local places = new_places[line]
    if not places then places = {}; new_places[line] = places end
    places[#places + 1] = 0
    places[#places + 1] = place_of(id, H, {})
    news(queue_of(line))
  end
end

local function flush()
  each_chunk(new_jobs, 400, function(list, i, j) call('MSET', unpack(list, i, j)) end)
  for line, places in pairs(new_places) do
    each_chunk(places, 400, function(list, i, j) call('ZADD', P .. 'q' .. line, unpack(list, i, j)) end)
  end
  new_jobs, new_places = {}, {}
end
