-- Steps and events: what jobs have done once, and what they wait for. Needs base.lua.
-- ARGV: now, mono, what, then: remember ID RECEIPT NAME DELAY|'' EVENT|'' BYTES;
-- recall ID PLACE; emit EVENT TOKEN KEEP PAYLOAD; wake; event EVENT.
-- Answer: remember: 1, or 0 where the receipt does not hold the job; recall: now, where to go on
-- (0: that was all), then name and value of each; emit: 1 if it is the first or the same call
-- again, and 1 if `wake` has more to do.

local what = ARGV[3]

local function remember(id, receipt, name, delay, event, bytes)
  local S = state(id)
  if S.st ~= 'r' or S.v ~= receipt then return 0 end
  local before = S.d and call('HGET', P .. 'd' .. id, name)
  local waited = before and awaited(before) or ''
  if waited ~= '' and waited ~= event then call('ZREM', P .. 'c' .. waited, id .. '\0' .. name) end
  if not S.d then
    S.d = true
    save(id, S)
  end
  local till = delay == '' and math.huge or now + tonumber(delay)
  call('HSET', P .. 'd' .. id, name, struct.pack('>dI4', till, #event) .. event .. bytes)
  if event ~= '' then
    call('ZADD', P .. 'c' .. event, call('HGET', P .. 'm', 'event') or 0, id .. '\0' .. name)
  end
  return 1
end

-- Who waits is numbered: by the event that woke him, or by the last before he began to wait.
local function emit(event, token, keep, payload)
  local known, by = sent(event)
  if known then return by == token and 1 or 0 end
  local till = now + tonumber(keep)
  call('HSET', P .. 'r', event, struct.pack('>d', till) .. token .. payload)
  call('ZADD', P .. 'R', till, event)
  if call('EXISTS', P .. 'c' .. event) == 1 then
    call('ZADD', P .. 'W', call('HINCRBY', P .. 'm', 'event', 1), event)
  end
  return 1
end

local refused = what == 'emit' and moved()
if refused then return refused end
local answer
if what == 'remember' then
  answer = remember(unpack(ARGV, 4, 9))
elseif what == 'recall' then
  local found = call('HSCAN', P .. 'd' .. ARGV[4], ARGV[5], 'COUNT', STEPS)
  answer = {string.format('%.17g', now), found[1]}
  for n, each in ipairs(found[2]) do answer[n + 2] = each end
elseif what == 'emit' then
  answer = {emit(unpack(ARGV, 4, 7)), wake_waiting(STEPS) and 1 or 0}
elseif what == 'wake' then
  answer = wake_waiting(STEPS) and 1 or 0
elseif what == 'event' then
  answer = sent(ARGV[4])
end
finish()
return answer
