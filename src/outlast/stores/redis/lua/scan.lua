-- Looking through everything, newest first, a bounded piece at a time. Needs base.lua.
-- ARGV: now, mono, what (find, purge, count), from: '+', a seq, or the id of the last page's end as
-- '@ID'; limit, states as letters, queue, task, key, since, until; '' for any.
-- Answer: where to go on ('' at the end), how many; then id, job and state of those found.

local what, from, limit, states, queue = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7]
local task, key, since, till = ARGV[8], ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11])
if (what == 'purge' or what == 'count') and #lines_of(queue) == 0 then return {'unknown', 0} end
if sub(from, 1, 1) == '@' then
  local H = header(sub(from, 2))
  if not H then return {'gone', 0} end
  from = tostring(H[1])
end

local refused = what == 'purge' and moved()
if refused then return refused end

local function fits(H, S)
  if states ~= '' and not find(states, S.st, 1, true) then return false end
  if queue ~= '' and queue_of(H[2]) ~= queue then return false end
  if task ~= '' and H[2]:match('/(.*)$') ~= task then return false end
  if key ~= '' and H[11] ~= key then return false end
  return (not since or H[3] >= since) and (not till or H[3] <= till)
end

local page = call('XREVRANGE', P .. 't', from == '+' and '+' or '(' .. from .. '-0', '-', 'COUNT', STEPS)
local answer, many, seen = {'', 0}, 0, 0
for _, entry in ipairs(page) do
  if many >= limit then break end
  seen = seen + 1
  from = entry[1]:match('^%d+')
  local id = entry[2][2]
  local H, S = header(id), state(id)
  if H and fits(H, S) then
    many = many + 1
    if what == 'find' then
      answer[#answer + 1] = id
      answer[#answer + 1] = call('GET', P .. 'j' .. id)
      answer[#answer + 1] = call('GET', P .. 's' .. id)
    elseif what == 'purge' then
      if S.st == 'q' then
        take_out(id, H, S)
        leave_lane(id, H)
      else
        call('ZREM', P .. 'z', id)
      end
      drop_key(id, H)
      remove(id, H, S)
    end
  end
end
finish()
if #page > 0 and (#page == STEPS or seen < #page) then answer[1] = from end
answer[2] = many
return answer
