-- Grants tokens of buckets. It is the last of the files that make the script: clock.lua sets now, in microseconds.
--
-- KEYS[i]    state of the i-th bucket; a bucket may occur more than once
-- ARGV[1]    jitter of expiries, 0 to 1023
-- ARGV[..]   for each bucket its kind, '0' for tokens and '1' for windows, or '2' and '3' if the next bucket belongs to the same
--            request, which needs both or nothing; then what grant_tokens or grant_windows wants
-- returns    6 integers for each bucket: stale waiting keep not_before level delay
local TOKENS, WINDOWS, TOKENS_JOINED, WINDOWS_JOINED = '0', '1', '2', '3'
local TOKENS_ARGS, WINDOWS_ARGS = 13, 15 -- with the kind
local reply = {}

-- Answers the k-th bucket, whose arguments begin at a. Returns where the next one's begin and whether all that wait have, or could
-- have, their cost.
local function answer(k, a, look)
  local kind, r = ARGV[a], (k - 1) * 6
  if kind == TOKENS or kind == TOKENS_JOINED then
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4], reply[r + 5], reply[r + 6] = grant_tokens(KEYS[k], a + 1, look)
    a = a + TOKENS_ARGS
  else
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4], reply[r + 5], reply[r + 6] = grant_windows(KEYS[k], a + 1, look)
    a = a + WINDOWS_ARGS
  end
  return a, reply[r + 1] == 0 and reply[r + 4] == 0
end

local k, a = 1, 2
while k <= #KEYS do
  local first_k, first_a = k, a
  local all, fits = true, true
  -- Of a group all is looked at first, which leaves the answers of a refused one; the last bucket of it is not marked as joined.
  while ARGV[a] == TOKENS_JOINED or ARGV[a] == WINDOWS_JOINED do
    a, fits = answer(k, a, true)
    all, k = all and fits, k + 1
  end
  local last = k
  if first_k < last then
    a, fits = answer(k, a, true)
    all = all and fits
    k, a = first_k, all and first_a or a
  end
  while all and k <= last do
    a = answer(k, a, false)
    k = k + 1
  end
  k = last + 1
end
return reply
