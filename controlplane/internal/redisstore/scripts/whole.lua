-- Arithmetic of the grant scripts. Every number is a whole one below 2^53, where doubles are exact.
-- For such a and b the double nearest to a / b is never at or above a whole number that the true
-- quotient is below, so x = a / b; x - x % 1 is the exact floor.
local MAX_UNITS = 4503599627370496 -- quota.MaxUnits
local NEVER = -1                    -- in place of a wait that no time ends
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
    if v - v % 1 ~= v or v < 0 or v > LARGEST then -- A text is not equal to its number.
      return false
    end
  end
  return true
end

-- By how much a state is to be set back in whole steps. The last moment that it knows lies ahead if
-- the clock was set back since, or another server took over whose clock is behind. Up to a minute
-- is waited for; but a clock that was an hour ahead would keep its buckets waiting for an hour. Set
-- back, a state goes on as if no time had passed since.
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

-- How many of the available tokens a node may hold of a limit that earns so many in a lease's time, for
-- requests of a cost: lease.keepShare in Go.
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

-- The term of tokens that end at an instant, and when a term ends: the lowest 32 bits.
local TERMS = 4294967296
-- For how long after its end unused tokens still go back: lease.Late.
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

-- Keeps a state until the instant from which it equals an absent one: by an absolute time, a
-- millisecond late rather than early, and with up to a tenth of its life added so that many that
-- were made together do not expire together.
local function save(key, state, forgettable)
  local expiry = ceiling(forgettable, 1000) + 1
  local life = expiry - this_millisecond
  if life > 0 then
    expiry = expiry + quotient(life * jitter, 10240)
  end
  redis.call('SET', key, cmsgpack.pack(state), 'PXAT', expiry)
end

-- Keeps a state that holds more than before as long as it would have been kept.
local function save_again(key, state)
  redis.call('SET', key, cmsgpack.pack(state), 'KEEPTTL')
end

-- When the state of buckets without one was last lost, in microseconds; 0 for never. The marker
-- that says so lies beside the buckets, so where it is gone they are: the loss is noticed now. All
-- buckets of a call have one marker, or markers that share their fate.
local lost, unmarked
local function lost_at(key)
  if not lost then
    lost = tonumber(redis.call('GET', string.match(key, '^[^}]*}:') .. 'lost') or '')
    unmarked = not lost
    lost = lost or now
  end
  return lost
end

-- In place of stale: the bucket may lack what nobody has used, because state was lost.
local IN_DOUBT = 2

-- Whether a grant says so: lease.Grant.Tells in Go.
local function tells(granted, not_before)
  return not_before ~= 0 or granted == 0
end

-- The name of what the requests of an item reserve, nil if their cost is known.
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

-- Notes what so many requests have reserved, each under its number: from when it counts, when it
-- counts in a history or ends as a lease, and its tokens.
local function reserve(key, name, granted, from, at, cost, counts)
  local main, taken = reservation_key(key, name), struct.pack('>I8I8I8', from, at, cost)
  for i = 1, granted do
    redis.call('SET', main .. i, taken, 'PXAT', ceiling(counts, 1000) + 1)
  end
end

-- Tokens that a settlement gave back, or took, in parts of a token; 0 if it did the other.
local function in_parts(tokens)
  return min(ceiling(max(tokens, 0) * 1000, 1), MAX_UNITS)
end

-- Takes a reservation away, so that it is settled once. Returns the three numbers of reserve,
-- nothing for one that is not there.
local function take_reservation(key, name, nth)
  local taken = redis.call('GETDEL', reservation_key(key, name) .. nth)
  if taken and #taken == 24 then
    return struct.unpack('>I8I8I8', taken)
  end
end

-- Notes a return of tokens of a term that ends at an instant; false if it has come before.
local function first_time(key, name, at)
  local noted = string.format('%s:returned:%08x%08x', key, struct.unpack('>I4I4', name))
  return redis.call('SET', noted, '', 'NX', 'PXAT', ceiling(at, 1000) + 1) ~= false
end
