-- The shelf: small values by key, which may pass away in time. Needs base.lua.
-- ARGV: now, mono, what, then: put TTL|'' {KEY VALUE}; count KEY TTL|'' [ONCE];
-- keep TTL|'' {KEY}; drop {KEY}; tidy LIMIT; get {KEY}; starting FROM TO, bounds as ZRANGEBYLEX has
-- them.
-- Answer: count: the number; tidy: the keys; get: a value for each, or false; starting:
-- the last key that was looked at, if there may be more, else ''; then key and value of each.

local what = ARGV[3]
local V, T, U = P .. 'S', P .. 'T', P .. 'U'

local function until_of(ttl) return ttl == '' and math.huge or now + tonumber(ttl) end

local function write(key, till, value)
  call('HSET', V, key, struct.pack('>d', till) .. value)
  call('ZADD', U, 0, key)
  if till == math.huge then call('ZREM', T, key) else call('ZADD', T, till, key) end
end

local function drop(key)
  call('HDEL', V, key)
  call('ZREM', T, key)
  call('ZREM', U, key)
end

-- The value of a key that has not passed away, and until when it stays.
local function read(key)
  local text = call('HGET', V, key)
  if not text then return false end
  local till = struct.unpack('>d', text)
  if till <= now then return false end
  return sub(text, 9), till
end

local refused = what ~= 'get' and what ~= 'starting' and moved()
if refused then return refused end
local answer
if what == 'put' then
  local till = until_of(ARGV[4])
  for n = 5, #ARGV, 2 do write(ARGV[n], till, ARGV[n + 1]) end
elseif what == 'count' then
  local once = ARGV[6]
  local known = once and read(once)
  if known then return tonumber(known) end
  local value, till = read(ARGV[4])
  answer = (value and tonumber(value) or 0) + 1
  local text = string.format('%.0f', answer)
  write(ARGV[4], till or until_of(ARGV[5]), text)
  if once then write(once, until_of(ARGV[5]), text) end
elseif what == 'keep' then
  local till = until_of(ARGV[4])
  for n = 5, #ARGV do
    local value, before = read(ARGV[n])
    if value and before ~= math.huge then write(ARGV[n], till, value) end
  end
elseif what == 'drop' then
  for n = 4, #ARGV do drop(ARGV[n]) end
elseif what == 'tidy' then
  answer = call('ZRANGEBYSCORE', T, '-inf', now, 'LIMIT', 0, ARGV[4])
  for _, key in ipairs(answer) do drop(key) end
elseif what == 'get' then
  answer = {}
  for n = 4, #ARGV do answer[n - 3] = (read(ARGV[n])) end
elseif what == 'starting' then
  local keys = call('ZRANGEBYLEX', U, ARGV[4], ARGV[5], 'LIMIT', 0, STEPS)
  answer = {#keys == STEPS and keys[STEPS] or ''}
  for _, key in ipairs(keys) do
    local value = read(key)
    if value then
      answer[#answer + 1] = key
      answer[#answer + 1] = value
    end
  end
end
return answer
