-- Grants tokens of buckets. It is the last of the files that make the script: clock.lua sets now,
-- in microseconds.
--
-- KEYS[i]      state of the i-th bucket; a bucket may occur more than once
-- ARGV[1]      jitter of expiries, 0 to 1023
-- ARGV[1 + i]  the kind of the i-th bucket, 't' for tokens and 'w' for windows, or 'T' and 'W' if the next bucket belongs to the
--              same request, which needs both or nothing; then big-endian numbers, see grant_tokens and grant_windows
--              'p' claims permits for requests in flight, see claim_permits
--              's' settles a reservation of tokens, 'l' one of windows, see settle_tokens; in place of waiting is 1 if it was there,
--              of level and keep what it gave back and took
--              'r' takes tokens of a term back, 'b' those of windows, see take_back_tokens; in place of keep is how many went back
--              While two versions are in force a bucket may be followed by its twin, which is charged for what it was granted: 'c' of
--              tokens and 'v' of windows for the main one, 'd' and 'x' for the draft's, or capitals as above; see charge_tokens
-- returns      7 integers for each bucket: stale (2: the bucket is in doubt) waiting keep not_before level delay term; of a report of what was used delay is the
--              debt instead, of windows how long they take until they are full; then the time, if the marker of lost state beside the buckets is missing
--              A text in place of stale is an error of the buckets of one request
local TOKENS, PERMITS, SETTLE_TOKENS, SETTLE_WINDOWS, RETURN_TOKENS, RETURN_WINDOWS = string.byte('tpslrb', 1, 6)
local CHARGE_TOKENS, CHARGE_WINDOWS, DRAFT_TOKENS, DRAFT_WINDOWS = string.byte('cvdx', 1, 4)
local VALUES = 7 -- of each bucket in the reply
local reply = {}

-- What grants a bucket of a kind, what charges its twin, what settles its reservations, and what takes back its
-- tokens.
local grant_tokens, charge_tokens, settle_tokens, take_back_tokens
local grant_windows, charge_windows, settle_windows, take_back_windows, claim_permits
local function functions_for(kind)
  if kind == TOKENS or kind == CHARGE_TOKENS or kind == DRAFT_TOKENS or kind == SETTLE_TOKENS or kind == RETURN_TOKENS then
    if not grant_tokens then
      grant_tokens, charge_tokens, settle_tokens, take_back_tokens = functions_for_tokens()
    end
    return grant_tokens, charge_tokens, settle_tokens, take_back_tokens
  elseif kind == PERMITS then
    claim_permits = claim_permits or functions_for_permits()
    return claim_permits
  elseif not grant_windows then
    grant_windows, charge_windows, settle_windows, take_back_windows = functions_for_windows()
  end
  return grant_windows, charge_windows, settle_windows, take_back_windows
end

-- The kind of the k-th bucket in small letters, and whether the next belongs to the same request.
local byte = string.byte
local function kind_of(k)
  local kind = byte(ARGV[1 + k] or ' ')
  if kind >= 65 and kind <= 90 then
    return kind + 32, true
  end
  return kind, false
end

-- Charges the k-th bucket for what the one before it was granted.
local function charge(k, kind)
  local arg, spent = ARGV[1 + k], (k - 2) * VALUES
  local granted, kept = reply[spent + 2], reply[spent + 3]
  local draft = kind == DRAFT_TOKENS or kind == DRAFT_WINDOWS
  local _, book = functions_for(kind)
  local used = 0
  if kind == CHARGE_TOKENS or kind == DRAFT_TOKENS then
    used = struct.unpack('>I8', arg, #arg - 7)
  end
  if reply[spent + 1] ~= 1 and granted + kept + used > 0 then
    book(KEYS[k], arg, granted, kept, draft)
  end
end

-- Answers the k-th bucket, and returns whether all that wait have, or could have, their cost.
local function answer(k, look)
  local arg, r = ARGV[1 + k], (k - 1) * VALUES
  local kind = kind_of(k)
  if kind == CHARGE_TOKENS or kind == CHARGE_WINDOWS or kind == DRAFT_TOKENS or kind == DRAFT_WINDOWS then
    if not look then
      charge(k, kind)
    end
    for i = r + 1, r + VALUES do
      reply[i] = 0
    end
    return true
  elseif kind == SETTLE_TOKENS or kind == SETTLE_WINDOWS then
    local _, _, settle = functions_for(kind)
    local known, back, took = settle(KEYS[k], arg)
    known = known and 1 or 0
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4], reply[r + 5], reply[r + 6], reply[r + 7] = 0, known, took or 0, 0, back or 0, 0, 0
    return true
  elseif kind == RETURN_TOKENS or kind == RETURN_WINDOWS then
    local _, _, _, take_back = functions_for(kind)
    local back = take_back(KEYS[k], arg)
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4], reply[r + 5], reply[r + 6], reply[r + 7] = 0, 0, back, 0, 0, 0, 0
    return true
  end
  local twin, hold = nil, 0
  local next_kind = kind_of(k + 1)
  if next_kind == CHARGE_TOKENS or next_kind == CHARGE_WINDOWS then
    twin, hold = KEYS[k + 1], struct.unpack('>I8', ARGV[2 + k], 2)
  end
  local grant = kind == TOKENS and grant_tokens or functions_for(kind)
  local stale, granted, kept, not_before, level, delay, term, begun = grant(KEYS[k], arg, look, twin, hold)
  if begun and (next_kind == DRAFT_TOKENS or next_kind == DRAFT_WINDOWS) then
    -- Each of both lacks a share of its own limit. A draft's that started as the main one would lack a
    -- share of that one's limit, which may be all that the draft allows.
    local _, begin = functions_for(next_kind)
    begin(KEYS[k + 1], ARGV[2 + k], 0, 0, true, begun)
  end
  reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4], reply[r + 5], reply[r + 6] = stale, granted, kept, not_before, level, delay
  reply[r + 7] = term or 0 -- Permits have none.
  return stale ~= 1 and not_before == 0
end

local function joined(k)
  local _, with_next = kind_of(k)
  return with_next
end

-- Answers the buckets from first to last, which belong to one request.
local function answer_group(first, last)
  if first == last then
    answer(first, false)
    return
  end
  local all = true -- A group is looked at as a whole first, which leaves the answers of a refused one.
  for k = first, last do
    all = answer(k, true) and all
  end
  if all then
    for k = first, last do
      answer(k, false)
    end
  end
end

-- What Redis says as a server that takes no writes. It concerns the whole call, and the client must
-- learn of it: it drops the connection, since another server may have the address by now.
local away

-- Puts the text of an error in place of the first answer of a group: requests of others may be in
-- the call, and those that need no memory, or no write, are answered as if they came alone.
local function fail(first, last, why)
  why = tostring(type(why) == 'table' and why.err or why)
  for _, code in ipairs({'READONLY ', 'MASTERDOWN ', 'LOADING ', 'CLUSTERDOWN '}) do
    local from = string.find(why, code, 1, true)
    if from then
      away = string.sub(why, from)
    end
  end
  for i = (first - 1) * VALUES + 1, last * VALUES do
    reply[i] = 0
  end
  reply[(first - 1) * VALUES + 1] = why
end

local first = 1
while first <= #KEYS and not away do
  local last = first
  while joined(last) do
    last = last + 1
  end
  local fine, why = pcall(answer_group, first, last)
  if not fine then
    fail(first, last, why)
  end
  first = last + 1
end
if away then
  return {err = away}
end
if unmarked then
  reply[#KEYS * VALUES + 1] = now
end
return reply
