-- Looking: counts, jobs by id, and the ends of jobs. Needs base.lua.
-- ARGV: now, mono, what, then: depth QUEUE; lines PLACE; jobs IDS; ends (1: listen) IDS; workers SINCE;
-- namespaces. Answer of lines: the place where the next piece begins, or '0'; then each of them.

local what = ARGV[3]

local function counts_of(line)
  local of = call('HMGET', P .. 'n' .. line, 'q', 'r', 'd', 'x', 'c')
  for n = 1, 5 do of[n] = tonumber(of[n] or 0) end
  of[6] = call('ZCOUNT', P .. 'l' .. line, '(' .. string.format('%.17g', now), '+inf')
  return of
end

local function created(id)
  local H = header(id)
  return H and string.format('%.17g', H[3]) or ''
end

local function oldest(line)
  local first = call('ZRANGE', P .. 'q' .. line, 0, 0)[1] or call('ZRANGE', P .. 'l' .. line, 0, 0)[1]
  if first then
    local _, _, _, id = read_place(first)
    return created(id)
  end
  return call('ZRANGE', P .. 'o' .. line, 0, 0, 'WITHSCORES')[2] or ''
end

local answer = {}
if what == 'depth' then
  for _, line in ipairs(lines_of(ARGV[4])) do answer[#answer + 1] = counts_of(line) end
elseif what == 'lines' then
  local piece = call('SSCAN', P .. 'g', ARGV[4], 'COUNT', STEPS)
  answer[1] = piece[1]
  for _, line in ipairs(piece[2]) do
    local of = counts_of(line)
    of[7] = line
    of[8] = call('SISMEMBER', P .. 'p', queue_of(line))
    of[9] = of[1] > 0 and oldest(line) or ''
    answer[#answer + 1] = of
  end
elseif what == 'jobs' then
  for n = 4, #ARGV do
    answer[#answer + 1] = call('GET', P .. 'j' .. ARGV[n])
    answer[#answer + 1] = call('GET', P .. 's' .. ARGV[n])
  end
elseif what == 'ends' then
  for n = 5, #ARGV do
    local id = ARGV[n]
    local text = call('GET', P .. 's' .. id)
    local S = text and unpacked(text)
    if call('EXISTS', P .. 'j' .. id) == 0 then return {id} end
    if S and S.st ~= 'q' and S.st ~= 'r' then
      answer[#answer + 1] = {id, call('GET', P .. 'j' .. id), text}
    elseif ARGV[4] == '1' and call('HEXISTS', P .. 'a', id) == 0 then
      call('HSET', P .. 'a', id, 1)
    end
  end
elseif what == 'workers' then
  for _, worker in ipairs(call('ZRANGEBYSCORE', P .. 'v', now - tonumber(ARGV[4]), '+inf')) do
    answer[#answer + 1] = call('HGET', P .. 'u', worker)
    answer[#answer + 1] = call('ZSCORE', P .. 'v', worker)
  end
elseif what == 'namespaces' then
  local all = redis.pcall('SMEMBERS', 'outlast:namespaces')
  if not all.err then return all end
  if call('EXISTS', P .. 'g', P .. 'v') > 0 then answer[1] = sub(P, 10, -2) end
end
return answer
