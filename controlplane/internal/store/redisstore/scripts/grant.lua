-- Grants tokens of buckets. It is the last file of the script: clock.lua sets now, in microseconds,
-- and the store defines the verbs before this file.
--
-- KEYS[i]      state of the i-th bucket; a bucket may occur more than once
-- ARGV[1]      jitter of expiries, 0 to 1023
-- ARGV[1 + i]  a byte that says what to do with the i-th bucket, then big-endian numbers. The byte is a verb, with WINDOWS for a
--              bucket of a window algorithm, and JOINED if the next bucket belongs to the same request, which needs both or nothing:
--              ASK and REPORT grant tokens, or count used tokens, see grant_tokens and grant_windows
--              CLAIM claims permits for requests in flight, see claim_permits
--              SETTLE settles a reservation, see settle_tokens; waiting is 1 if the reservation was there, level has the tokens that
--              went back, and keep the tokens that it took in addition
--              RETURN takes tokens of a term back, see take_back_tokens; keep has the number of tokens that went back
--              While two versions are in force, the twin of a bucket may follow it. The twin is charged for the grant:
--              CHARGE for the main ledger, CHARGE_DRAFT for the draft's; see charge_tokens
-- returns      7 integers for each bucket: stale (2: the bucket is in doubt) waiting keep not_before level delay term. In place of
--              delay is the debt in the answer to a report of use, and for windows the time until they are full. Then follows the
--              time, if the marker of lost state beside the buckets is missing. A text in place of stale is an error of the buckets
--              of one request
local VALUES = 7 -- of each bucket in the reply
local reply = {}

-- The functions by verb, made for the kinds of buckets in this call. An unknown verb has no
-- function: to call it is an error.
local functions = {}
local function function_for(verb)
  if functions[verb] then
    return functions[verb]
  end
  if verb == CLAIM then
    functions[CLAIM] = functions_for_permits()
    return functions[CLAIM]
  end
  local of, family = 0, functions_for_tokens
  if verb >= WINDOWS then
    of, family = WINDOWS, functions_for_windows
  end
  local grant, charge, settle, take_back = family()
  functions[of + ASK], functions[of + REPORT], functions[of + SETTLE], functions[of + RETURN] = grant, grant, settle, take_back
  functions[of + CHARGE], functions[of + CHARGE_DRAFT] = charge, charge
  return functions[verb]
end

-- The verb of the k-th bucket, with WINDOWS and without, and whether the next bucket belongs to the
-- same request.
local byte = string.byte
local function verb_of(k)
  local verb = k <= #KEYS and byte(ARGV[1 + k]) or -1
  if verb >= JOINED then
    return verb - JOINED, (verb - JOINED) % WINDOWS, true
  end
  return verb, verb % WINDOWS, false
end

local function clear(r)
  for i = r + 1, r + VALUES do
    reply[i] = 0
  end
end

-- Charges the k-th bucket for the grant of the bucket before it.
local function charge(k, verb, draft)
  local arg, spent = ARGV[1 + k], (k - 2) * VALUES
  local granted, kept = reply[spent + 2], reply[spent + 3]
  local book = function_for(verb)
  local used = 0
  if verb < WINDOWS then
    used = struct.unpack('>I8', arg, #arg - 7)
  end
  if reply[spent + 1] ~= 1 and granted + kept + used > 0 then
    book(KEYS[k], arg, granted, kept, draft)
  end
end

-- Answers the k-th bucket. Returns whether all waiting requests got, or could get, their cost.
local function answer(k, look)
  local arg, r = ARGV[1 + k], (k - 1) * VALUES
  -- A verb that asks for no grant.
  local verb, alone = verb_of(k)
  if alone == CHARGE or alone == CHARGE_DRAFT then
    if not look then
      charge(k, verb, alone == CHARGE_DRAFT)
    end
    clear(r)
    return true
  elseif alone == SETTLE then
    local known, back, took = function_for(verb)(KEYS[k], arg)
    clear(r)
    reply[r + 2], reply[r + 3], reply[r + 5] = known and 1 or 0, took or 0, back or 0
    return true
  elseif alone == RETURN then
    local back = function_for(verb)(KEYS[k], arg)
    clear(r)
    reply[r + 3] = back
    return true
  end
  -- A grant, perhaps from a bucket with a twin.
  local twin, hold = nil, 0
  local next_verb, next_alone = verb_of(k + 1)
  if next_alone == CHARGE then
    twin, hold = KEYS[k + 1], struct.unpack('>I8', ARGV[2 + k], 2)
  end
  local stale, granted, kept, not_before, level, delay, term, begun = function_for(verb)(KEYS[k], arg, look, twin, hold)
  if begun and next_alone == CHARGE_DRAFT then
    -- Each of both lacks a share of its own limit. A draft's ledger that starts as a copy of the
    -- main one would lack a share of the main limit, which may be all that the draft allows.
    function_for(next_verb)(KEYS[k + 1], ARGV[2 + k], 0, 0, true, begun)
  end
  reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4], reply[r + 5], reply[r + 6] = stale, granted, kept, not_before, level, delay
  reply[r + 7] = term or 0 -- Permits have no term.
  return stale ~= 1 and not_before == 0
end

local function joined(k)
  local _, _, with_next = verb_of(k)
  return with_next
end

-- Answers the buckets from first to last, which belong to one request.
local function answer_group(first, last)
  if first == last then
    answer(first, false)
    return
  end
  -- First only look at the whole group: if it is refused, these are its answers.
  local all = true
  for k = first, last do
    all = answer(k, true) and all
  end
  if all then
    for k = first, last do
      answer(k, false)
    end
  end
end

-- The error of a Redis that takes no writes. It concerns the whole call, and the client must see
-- it: the client then drops the connection, since another server may have the address by now.
local away

-- Puts the text of an error in place of the first answer of a group. The call may have other
-- requests: those that need no memory, or no write, are answered as if they came alone.
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

-- Answer group by group.
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
