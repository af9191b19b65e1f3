-- Renewing leases and storing progress. Needs base.lua.
-- ARGV: now, mono, lease, how many, then id, receipt, progress or '' of each.
-- Answer: index and reason of each claim that is lost, or that somebody wants cancelled.

despite_full_memory()
local lease, answer, leases = tonumber(ARGV[3]), {}, {}
for n = 1, tonumber(ARGV[4]) do
  local id, receipt, note = ARGV[2 + 3 * n], ARGV[3 + 3 * n], ARGV[4 + 3 * n]
  local S = state(id)
  if S.st ~= 'r' or S.v ~= receipt then
    answer[#answer + 1] = {n, 'lost'}
  else
    leases[#leases + 1] = mono + lease
    leases[#leases + 1] = id
    if note ~= '' then
      S.G = note
      save(id, S)
    end
    if S.k then answer[#answer + 1] = {n, 'cancelled'} end
  end
end
lease_all(leases)
finish()
return answer
