-- Grants tokens of buckets. It is the last of the files that make the script: clock.lua sets now, in microseconds.
--
-- KEYS[i]    state of the i-th bucket; a bucket may occur more than once
-- ARGV[1]    jitter of expiries, 0 to 1023
-- ARGV[..]   for each bucket its kind, '0' for tokens and '1' for windows, or '2' and '3' if the next bucket belongs to the same
--            request, which needs both or nothing; then what grant_tokens or grant_windows wants
-- returns    6 integers for each bucket: stale waiting keep not_before level delay
local reply = {}

local function answer(k, a, look)
  local kind, r = ARGV[a], (k - 1) * 6
  local grant = grant_tokens
  if kind == '1' or kind == '3' then
    grant = grant_windows
  end
  local stale, granted, kept, not_before, level, delay = grant(KEYS[k], a + 1, look)
  reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4], reply[r + 5], reply[r + 6] = stale, granted, kept, not_before, level, delay
  return stale == 0 and not_before == 0
end

local ARGS = {['0'] = 13, ['1'] = 15, ['2'] = 13, ['3'] = 15}
local k, a = 1, 2
while k <= #KEYS do
  local kind = ARGV[a]
  if kind == '0' or kind == '1' then
    answer(k, a, false)
    k, a = k + 1, a + ARGS[kind]
  else
    -- A group: look at all of it first, which leaves the answers of a refused one.
    local next_k, next_a, all, joined = k, a, true, true
    while joined do
      kind = ARGV[next_a]
      joined = kind == '2' or kind == '3'
      all = answer(next_k, next_a, true) and all
      next_k, next_a = next_k + 1, next_a + ARGS[kind]
    end
    if all then
      while k < next_k do
        answer(k, a, false)
        k, a = k + 1, a + ARGS[ARGV[a]]
      end
    end
    k, a = next_k, next_a
  end
end
return reply
