-- Somebody is going to sleep: from now on it is told of news. Needs base.lua.
-- ARGV: now, mono, space (1) or work, queues. Answer: 1 if jobs came due just now; and the seconds
-- until the next one comes due, or ''.

local space, moved, soonest, left = ARGV[3] == '1', 0, nil, STEPS
local kind = space and 'r' or 'w'
if not space then
  for n = 4, #ARGV do
    if call('SISMEMBER', P .. 'p', ARGV[n]) == 0 then
      for _, line in ipairs(lines_of(ARGV[n])) do
        local came = promote(line, left)
        left = left - came
        if came > 0 then moved = 1 end
        local first = call('ZRANGE', P .. 'l' .. line, 0, 0, 'WITHSCORES')[2]
        first = first and tonumber(first)
        if first and (not soonest or first < soonest) then soonest = first end
      end
    end
  end
end
tell()
for n = 4, #ARGV do
  if call('HEXISTS', P .. 'i', kind .. ARGV[n]) == 0 then call('HSET', P .. 'i', kind .. ARGV[n], 1) end
end
return {moved, soonest and string.format('%.17g', math.max(0, soonest - now)) or ''}
