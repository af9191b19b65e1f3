-- Taking back what nobody renewed: at first a suspect, then a crash. Needs base.lua.
-- ARGV: now, mono, limit, the server's run. Answer: how many; and 1 if leases were prolonged.
--
-- A lease that ran out while the server was away is nobody's crash: in a new run of the server all
-- leases get the longest that was ever given, before anything is taken back. The moment when that ends
-- is noted by the first call, or each of several would find those of the one before too short again.

despite_full_memory()
local limit, run = tonumber(ARGV[3]), ARGV[4]
if call('HGET', P .. 'm', 'run') ~= run then
  local seen, till = (call('HGET', P .. 'm', 'long') or ''):match('^(%S*) (%S+)$')
  if seen ~= run then
    till = string.format('%.17g', mono + tonumber(call('HGET', P .. 'm', 'lease') or 0))
    call('HSET', P .. 'm', 'long', run .. ' ' .. till)
  end
  local old = call('ZRANGEBYSCORE', P .. 'e', '-inf', '(' .. till, 'LIMIT', 0, STEPS)
  for _, id in ipairs(old) do call('ZADD', P .. 'e', till, id) end
  if #old < STEPS then
    call('HSET', P .. 'm', 'run', run, 'since', string.format('%.3f', now))
    call('HDEL', P .. 'm', 'long')
  end
  return {0, 1}
end
local due = call('ZRANGEBYSCORE', P .. 'e', '-inf', mono, 'LIMIT', 0, limit)
for _, id in ipairs(due) do
  local H, S = header(id), state(id)
  if not H or S.st ~= 'r' then
    unleased[#unleased + 1] = id
  elseif S.u then
    crash(id, H, S, '{"kind":"crash","message":"the lease ran out"}')
  else
    S.u = true
    requeue(id, H, S)
  end
end
finish()
return {#due, 0}
