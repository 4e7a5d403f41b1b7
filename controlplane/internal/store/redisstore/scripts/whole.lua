-- Arithmetic of the grant scripts. Every number is a whole number below 2^53, where doubles are
-- exact. For such a and b the double a / b never reaches a whole number above the true quotient, so
-- x = a / b; x - x % 1 is the exact floor.
local MAX_UNITS = 4503599627370496 -- quota.MaxUnits
local NEVER = -1                    -- in place of a wait without an end
local jitter = ARGV[1] + 0
local max, min = math.max, math.min

local function quotient(a, b)
  local x = a / b
  return x - x % 1
end

local function ceiling(a, b)
  local x = a / b
  x = x - x % 1
  if x * b < a then
    return x + 1
  end
  return x
end

-- Whether the first n values of a list are whole numbers that a grant can have left.
local LARGEST = 2 * MAX_UNITS
local function plausible(s, n)
  for i = 1, n do
    local v = s[i]
    if v - v % 1 ~= v or v < 0 or v > LARGEST then -- A text does not equal its number.
      return false
    end
  end
  return true
end

-- The span by which a state must be set back, in whole steps. The last moment of a state is in the
-- future if the clock was set back since, or if another server took over whose clock is behind. Up
-- to a minute is waited for; but after a clock that was an hour ahead, buckets would wait for an
-- hour. A state that is set back continues as if no time had passed.
local AHEAD = 60000000
local function ahead(last, step)
  local by = last - now
  if by <= AHEAD then
    return 0
  end
  return by - math.fmod(by, step)
end

-- The number of the policy set in a version: the rest is the epoch of a region's part.
local function policy_set(version)
  return quotient(version, 16777216) -- 2^lease.EpochBits
end

-- The number of available tokens that a node may keep, for requests of a cost; earns is the number
-- of tokens that the limit earns in the time of a lease: lease.keepShare in Go.
local function keep_share(keep, nodes, available, earns, cost)
  local share
  if nodes > 1 then
    share = quotient(available, 8 * nodes) + quotient(earns, 2)
    if keep > quotient(available, nodes) then
      share = min(share, quotient(available, 2 * nodes))
    end
  else
    share = ceiling(available, 4) + earns
  end
  keep = min(keep, share, available)
  if keep < cost then
    return 0
  end
  return keep
end

-- The term of tokens that end at an instant: the lowest 32 bits of the instant. end_of_term is the
-- inverse.
local TERMS = 4294967296
-- The time after its end in which unused tokens still go back: lease.Late.
local LATE = 100000
local function term_of(at)
  return at - quotient(at, TERMS) * TERMS
end

local function end_of_term(term, at)
  local ahead = term - term_of(at)
  if ahead >= TERMS / 2 then
    ahead = ahead - TERMS
  elseif ahead < -TERMS / 2 then
    ahead = ahead + TERMS
  end
  return at + ahead
end

local this_millisecond = quotient(now, 1000)

-- Stores a state until it equals an absent one. The expiry is an absolute time, a millisecond late
-- rather than early. Up to a tenth of the remaining time is added, so that states made together do
-- not expire together.
local function save(key, state, forgettable)
  local expiry = ceiling(forgettable, 1000) + 1
  local life = expiry - this_millisecond
  if life > 0 then
    expiry = expiry + quotient(life * jitter, 10240)
  end
  redis.call('SET', key, cmsgpack.pack(state), 'PXAT', expiry)
end

-- Stores a state with more tokens than before, with the same expiry.
local function save_again(key, state)
  redis.call('SET', key, cmsgpack.pack(state), 'KEEPTTL')
end

-- The time of the last loss of state, for buckets without a state, in microseconds; 0 for never.
-- The marker with this time is stored beside the buckets. If the marker is gone, so are the
-- buckets: the loss is noticed now. All buckets of a call have one marker, or markers that are lost
-- together.
local lost, unmarked
local function lost_at(key)
  if not lost then
    lost = tonumber(redis.call('GET', string.match(key, '^[^}]*}:') .. 'lost') or '')
    unmarked = not lost
    lost = lost or now
  end
  return lost
end

-- In place of stale: the bucket may lack tokens that were not used, because state was lost.
local IN_DOUBT = 2

-- Whether a grant reports the doubt: lease.Grant.Tells in Go.
local function tells(granted, not_before)
  return not_before ~= 0 or granted == 0
end

-- The name of the reservations of an item's requests, nil if their cost is known.
local UNNAMED = '\0\0\0\0\0\0\0\0'
local function reserved_name(arg)
  local name = string.sub(arg, #arg - 7)
  if name ~= UNNAMED then
    return name
  end
end

-- The key of a reservation without its number, beside the main state of its bucket.
local function reservation_key(key, name)
  if string.sub(key, -6) == ':draft' then
    key = string.sub(key, 1, -7)
  end
  return string.format('%s:reserved:%08x%08x:', key, struct.unpack('>I4I4', name))
end

-- Stores the reservations of requests, each under its number: the time from which it counts; the
-- time at which it counts in a history, or ends as a lease; and its tokens.
local function reserve(key, name, granted, from, at, cost, counts)
  local main, taken = reservation_key(key, name), struct.pack('>I8I8I8', from, at, cost)
  for i = 1, granted do
    redis.call('SET', main .. i, taken, 'PXAT', ceiling(counts, 1000) + 1)
  end
end

-- The tokens that a settlement gave back, or took, in parts of a token; 0 if it did the opposite.
local function in_parts(tokens)
  return min(ceiling(max(tokens, 0) * 1000, 1), MAX_UNITS)
end

-- Deletes a reservation, so that it is settled only once. Returns its three numbers, see reserve,
-- or nothing if there is no such reservation.
local function take_reservation(key, name, nth)
  local taken = redis.call('GETDEL', reservation_key(key, name) .. nth)
  if taken and #taken == 24 then
    return struct.unpack('>I8I8I8', taken)
  end
end

-- Records a return of tokens whose term ends at an instant. Returns false if the return was
-- recorded before.
local function first_time(key, name, at)
  local noted = string.format('%s:returned:%08x%08x', key, struct.unpack('>I4I4', name))
  return redis.call('SET', noted, '', 'NX', 'PXAT', ceiling(at, 1000) + 1) ~= false
end
