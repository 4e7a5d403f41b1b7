-- Grants tokens of buckets, exactly as lease.Ledger.Grant does in Go. clock.lua goes before it and sets now, in microseconds.
--
-- KEYS[i]    state of the i-th bucket; a bucket may occur more than once
-- ARGV[1]    jitter of expiries, 0 to 1023
-- ARGV[..]   12 for each bucket: num den burst ttl version waiting cost deadline keep nodes, then doubtful_until, the instant
--            before which an absent state may be a lost one, and doubtful_debt, what a bucket starts with whose state is lost
-- returns    5 integers for each bucket: stale waiting keep not_before level
--
-- A state is a MessagePack list: format version last debt num den burst, then end and tokens of each lease, the earliest first.
-- Every number is a whole one below 2^53, where doubles are exact. Division is exact only through fmod: a % b is not.
local fmod, floor, max, min = math.fmod, math.floor, math.max, math.min

local FORMAT = 1
local MAX_UNITS = 4503599627370496 -- quota.MaxUnits
local SATURATED = 5629499534213120 -- where debts saturate: 1.25 * MAX_UNITS
local MAX_PAIRS = 6                -- lease.MaxPairs
local FIELDS = 7                   -- of a state before its leases
local ARGS = 12

local function quotient(a, b)
  return (a - fmod(a, b)) / b
end

local function ceiling(a, b)
  local r = fmod(a, b)
  if r > 0 then
    return (a - r) / b + 1
  end
  return a / b
end

local function units(n, den)
  if n > quotient(SATURATED, den) then
    return SATURATED
  end
  return n * den
end

local function earned(debt, span, num)
  if span > quotient(debt, num) then
    return 0
  end
  return debt - span * num
end

-- Whether an/ad < bn/bd, by comparing continued fractions: the products would not fit.
local function slower(an, ad, bn, bd)
  while true do
    local ar, br = fmod(an, ad), fmod(bn, bd)
    local aq, bq = (an - ar) / ad, (bn - br) / bd
    if aq ~= bq then
      return aq < bq
    end
    if br == 0 then
      return false
    end
    if ar == 0 then
      return true
    end
    an, ad, bn, bd = bd, br, ad, ar
  end
end

-- The state in raw, or nil if no grant can have left it.
local function decode(raw)
  local ok, s = pcall(cmsgpack.unpack, raw)
  if not ok or type(s) ~= 'table' or s[1] ~= FORMAT then
    return nil
  end
  local n = #s
  if n < FIELDS or n > FIELDS + 2 * MAX_PAIRS or fmod(n - FIELDS, 2) ~= 0 then
    return nil
  end
  for i = 1, n do
    local v = s[i]
    if type(v) ~= 'number' or v < 0 or v > 2 * MAX_UNITS or v ~= floor(v) then
      return nil
    end
  end
  local l = {version = s[2], last = s[3], debt = s[4], num = s[5], den = s[6], burst = s[7], ends = {}, tokens = {}}
  if l.num < 1 or l.den < 1 or l.burst < 1 or l.num > MAX_UNITS or l.burst > quotient(MAX_UNITS, l.den) then
    return nil
  end
  for i = FIELDS + 1, n, 2 do
    table.insert(l.ends, s[i])
    table.insert(l.tokens, s[i + 1])
  end
  return l
end

local function encode(l)
  local s = {FORMAT, l.version, l.last, l.debt, l.num, l.den, l.burst}
  for i = 1, #l.ends do
    table.insert(s, l.ends[i])
    table.insert(s, l.tokens[i])
  end
  return cmsgpack.pack(s)
end

-- The tokens leased until from or later.
local function out(l, from)
  local n = 0
  for i = 1, #l.ends do
    if l.ends[i] >= from then
      n = n + l.tokens[i]
    end
  end
  return n
end

-- Refills piece by piece: each expiry raises the cap only from its own moment on.
local function advance(l, to)
  local debt = earned(l.debt, to - l.last, l.num)
  local ends, tokens = {}, {}
  for i = 1, #l.ends do
    local e = l.ends[i]
    if e <= to then
      debt = max(debt, earned(units(out(l, e), l.den), to - e, l.num))
    else
      table.insert(ends, e)
      table.insert(tokens, l.tokens[i])
    end
  end
  l.ends, l.tokens, l.last = ends, tokens, to
  l.debt = max(debt, units(out(l, 0), l.den))
end

local function convert(l, num, den, burst)
  l.debt = units(ceiling(l.debt, l.den), den)
  l.num, l.den, l.burst = num, den, burst
end

-- Brings l to now and to new figures. Time since last earns at the slower of the two rates.
local function bring(l, to, num, den, burst, version)
  l.version = max(l.version, version)
  to = max(to, l.last)
  if l.num == num and l.den == den and l.burst == burst then
    advance(l, to)
  elseif slower(num, den, l.num, l.den) then
    convert(l, num, den, burst)
    advance(l, to)
  else
    advance(l, to)
    convert(l, num, den, burst)
  end
  l.debt = max(units(out(l, 0), l.den), min(l.debt, l.burst * l.den))
end

-- Books n tokens as used, and as leased for span, rounded up to the next multiple of a piece.
local function lend(l, n, span, pieces)
  if n <= 0 then
    return
  end
  l.debt = l.debt + n * l.den
  if span <= 0 then
    return
  end
  local w = ceiling(span, pieces)
  local e = (quotient(l.last, w) + pieces + 1) * w
  local at = 1
  while at <= #l.ends and l.ends[at] < e do
    at = at + 1
  end
  if l.ends[at] == e then
    l.tokens[at] = l.tokens[at] + n
    return
  end
  table.insert(l.ends, at, e)
  table.insert(l.tokens, at, n)
  if #l.ends > MAX_PAIRS then
    l.tokens[2] = l.tokens[2] + l.tokens[1]
    table.remove(l.ends, 1)
    table.remove(l.tokens, 1)
  end
end

-- The first instant at which n tokens can be had if nobody else takes any.
local function ready(l, n)
  local t = l.last + ceiling(max(0, l.debt + (n - l.burst) * l.den), l.num)
  for i = 1, #l.ends do
    local over = out(l, l.ends[i]) + n - l.burst
    if over > 0 then
      t = max(t, l.ends[i] + ceiling(units(over, l.den), l.num))
    end
  end
  return t
end

local function keep_share(keep, nodes, available)
  keep, nodes = max(keep, 0), max(nodes, 1)
  if keep > quotient(available, nodes) then
    keep = min(keep, quotient(available + 2 * nodes - 1, 2 * nodes))
  end
  return min(keep, available)
end

-- Keeps l until it equals an absent state: by an absolute time, a millisecond late rather than early, and with up to a tenth of
-- its life added so that many that were made together do not expire together.
local function store(key, l, jitter)
  local expiry = ceiling(ready(l, l.burst), 1000) + 1
  local life = max(0, expiry - quotient(now, 1000))
  expiry = expiry + quotient(life * jitter, 10240)
  redis.call('SET', key, encode(l), 'PXAT', string.format('%.0f', expiry))
end

local reply = {}
local jitter = ARGV[1] + 0
for k = 1, #KEYS do
  local a = 2 + (k - 1) * ARGS
  local num, den, burst, ttl, version = ARGV[a] + 0, ARGV[a + 1] + 0, ARGV[a + 2] + 0, ARGV[a + 3] + 0, ARGV[a + 4] + 0
  local waiting, cost, deadline = max(ARGV[a + 5] + 0, 0), max(ARGV[a + 6] + 0, 1), ARGV[a + 7] + 0
  local keep, nodes, doubtful_until, doubtful_debt = ARGV[a + 8] + 0, ARGV[a + 9] + 0, ARGV[a + 10] + 0, ARGV[a + 11] + 0

  local l, doubtful, changed = nil, false, false
  local raw = redis.pcall('GET', KEYS[k]) -- An error, for a key of another type, is a table.
  if raw then
    l = type(raw) == 'string' and decode(raw) or nil
    doubtful = l == nil
  else
    doubtful = now < doubtful_until
  end
  local stale = false
  if l then
    local same = l.num == num and l.den == den and l.burst == burst
    stale = l.version > version and not same
    changed = not same
  else
    l = {version = version, last = now, debt = 0, num = num, den = den, burst = burst, ends = {}, tokens = {}}
    if doubtful then
      l.debt, changed = doubtful_debt, true
    end
  end

  if stale then
    for _, v in ipairs({1, 0, 0, 0, 0}) do
      table.insert(reply, v)
    end
  else
    bring(l, now, num, den, burst, version)
    local available = max(0, quotient(burst * den - l.debt, den))
    local granted = min(waiting, quotient(available, cost))
    lend(l, granted * cost, deadline, 1)
    available = available - granted * cost
    local kept = 0
    if ttl > 0 then
      kept = keep_share(keep, nodes, available)
      lend(l, kept, ttl, 2)
    end
    local not_before = 0
    if granted < waiting then
      not_before = max(1, ready(l, min(cost, burst)) - now)
    end
    if changed or granted > 0 or kept > 0 then
      store(KEYS[k], l, jitter)
    end
    for _, v in ipairs({0, granted, kept, not_before, available - kept}) do
      table.insert(reply, v)
    end
  end
end
return reply
