-- Grants tokens of buckets. It is the last of the files that make the script: clock.lua sets now, in microseconds.
--
-- KEYS[i]      state of the i-th bucket; a bucket may occur more than once
-- ARGV[1]      jitter of expiries, 0 to 1023
-- ARGV[1 + i]  the kind of the i-th bucket, 't' for tokens and 'w' for windows, or 'T' and 'W' if the next bucket belongs to the
--              same request, which needs both or nothing; then big-endian numbers, see grant_tokens and grant_windows
-- returns      6 integers for each bucket: stale waiting keep not_before level delay; of a report of what was used the last is the
--              debt instead; then the time, if the marker of lost state beside the buckets is missing
local TOKENS, TOKENS_JOINED, WINDOWS_JOINED = string.byte('tTW', 1, 3)
local reply = {}

-- Answers the k-th bucket, and returns whether all that wait have, or could have, their cost.
local function answer(k, look)
  local arg, r = ARGV[1 + k], (k - 1) * 6
  local kind = string.byte(arg)
  local grant = grant_windows
  if kind == TOKENS or kind == TOKENS_JOINED then
    grant = grant_tokens
  end
  local stale, granted, kept, not_before, level, delay = grant(KEYS[k], arg, look)
  reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4], reply[r + 5], reply[r + 6] = stale, granted, kept, not_before, level, delay
  return stale == 0 and not_before == 0
end

local function joined(k)
  local kind = string.byte(ARGV[1 + k])
  return kind == TOKENS_JOINED or kind == WINDOWS_JOINED
end

local first = 1
while first <= #KEYS do
  local last, all = first, true
  while joined(last) do
    last = last + 1
  end
  if first < last then -- A group is looked at as a whole first, which leaves the answers of a refused one.
    for k = first, last do
      all = answer(k, true) and all
    end
  end
  if all then
    for k = first, last do
      answer(k, false)
    end
  end
  first = last + 1
end
if unmarked then
  reply[#KEYS * 6 + 1] = now
end
return reply
