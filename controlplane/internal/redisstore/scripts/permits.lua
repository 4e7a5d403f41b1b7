-- Permits of requests in flight, exactly as inflight.Ledger in Go.
--
-- claim_permits(key, arg) answers a claim: an argument of 8-byte numbers after its kind, seq hold
-- lent need spare limit nodes, and then the node. It returns six numbers as grant_tokens does, of which
-- the third is the permits, the fourth for how long nobody gets more than he has, as permits may be lost,
-- the fifth how many are free, and the sixth how long they last: 0 for a claim that does not count.
--
-- A state is a hash: node -> seq permits until ceiling want. The field without a name has the sum
-- of all permits, when the first of them ends at the earliest, how many nodes there are, and when
-- the last claim came. Thanks to these few claims read more than the node's own: all nodes are
-- looked through when the first of them ends. The field 'short' has node permits want at of those
-- that have lately lacked permits, the last one last.
local function functions_for_permits()
  local TTL = 10000000   -- inflight.TTL
  local MAX_NODES = 10000 -- inflight.MaxNodes
  local KEPT = 60000     -- milliseconds: more than any permits last
  local CHUNK = 1000     -- of fields in one call
  local GIVEN_BACK = 1000000 -- leases.GivenBackIn
  local TOTAL, SHORT = '', 'short'
  local WANT_FOR, MOST_SHORT = 1000000, 32 -- inflight.wantFor, inflight.mostShort

  -- Drops the nodes whose permits have ended. What ends later than any permits given now do is of a
  -- clock that was set back since. Returns the sum, the earliest end, and the number of the others.
  local function sweep(key)
    local fields, ended = redis.call('HKEYS', key), {}
    local sum, first, count = 0, now + TTL, 0
    for from = 1, #fields, CHUNK do
      local values = redis.call('HMGET', key, unpack(fields, from, math.min(from + CHUNK - 1, #fields)))
      for i = 1, #values do
        local node = fields[from + i - 1]
        local held = #node >= 8 and cmsgpack.unpack(values[i])
        if held and held[3] <= now then
          ended[#ended + 1] = node
        elseif held then
          if held[3] > now + TTL then
            held[3], held[5] = now + TTL, 0
            redis.call('HSET', key, node, cmsgpack.pack(held))
          end
          sum, first, count = sum + held[2], math.min(first, held[3]), count + 1
        end
      end
    end
    for from = 1, #ended, CHUNK do
      redis.call('HDEL', key, unpack(ended, from, math.min(from + CHUNK - 1, #ended)))
    end
    return sum, first, count
  end

  -- When permits were last lost, in microseconds, 0 for never. A marker of their own says so, since
  -- control planes give them back, and a server that took over may have lost none.
  local lent_lost
  local function lent_lost_at(key)
    lent_lost = lent_lost or tonumber(redis.call('GET', string.match(key, '^[^}]*}:') .. 'lent') or '') or lost_at(key)
    return lent_lost
  end

  -- How many permits a node gets of those that are free.
  local function granted(free, hold, need, spare, nodes)
    local n = math.min(hold + need, free)
    if free > n then
      n = n + math.min(spare, quotient(free - n, 2 * nodes))
    end
    return n
  end

  -- Returns what a node keeps of its permits and leaves to others, and those others.
  local function leave(granted, node, packed)
    local short, nodes, permits, want = {}, 0, 0, 0
    for _, one in ipairs(packed and cmsgpack.unpack(packed) or {}) do
      if one[1] ~= node and one[4] > now - WANT_FOR and one[4] <= now then
        short[#short + 1] = one
      end
    end
    for i = math.max(#short - MOST_SHORT + 1, 1), #short do
      nodes, permits, want = nodes + 1, permits + short[i][2], want + short[i][3]
    end
    local even = quotient(granted + permits + nodes, nodes + 1)
    return math.max(granted - want, math.min(granted, even)), short
  end

  local function claim_permits(key, arg)
    local seq, hold, lent, need, spare, limit, nodes = struct.unpack('>I8I8I8I8I8I8I8', arg, 2)
    local node = string.sub(arg, 58)
    local sum, first, count, last = 0, now + TTL, 0, now
    local total = redis.call('HGET', key, TOTAL)
    if total then
      sum, first, count, last = unpack(cmsgpack.unpack(total))
    end
    if first <= now or now < last then
      sum, first, count = sweep(key)
    end
    local held, packed = unpack(redis.call('HMGET', key, node, SHORT))
    local own = held and cmsgpack.unpack(held) or {0, 0, 0, 0, 0}
    if seq < own[1] or not held and count >= MAX_NODES then
      local _, short = leave(0, '', packed)
      redis.call('HSET', key, TOTAL, cmsgpack.pack({sum, first, count, now}), SHORT, cmsgpack.pack(short))
      return 0, 0, 0, 0, 0, 0
    end
    if own[3] <= now + TTL - WANT_FOR then
      own[5] = 0
    end
    local doubtful = lent_lost_at(key)
    local doubt = doubtful > 0 and math.max(doubtful + GIVEN_BACK - now, 0) or 0
    local others = sum - own[2]
    local free = limit - others
    local keeps, short = leave(math.max(granted(free, hold, need, spare, nodes), 0), node, packed)
    if doubt > 0 then
      keeps = lent
    end
    if seq > own[1] then
      own[4] = keeps
      own[2] = math.max(keeps, hold)
      own[5] = math.max(math.min(hold + need - keeps, need), 0)
    end
    if not held then
      count = count + 1
    end
    own[1], own[3] = seq, now + TTL
    if own[5] > 0 then
      short[#short + 1] = {node, own[2], own[5], now}
    end
    while #short > MOST_SHORT + 1 do
      table.remove(short, 1)
    end
    redis.call('HSET', key, node, cmsgpack.pack(own), TOTAL, cmsgpack.pack({others + own[2], first, count, now}),
      SHORT, cmsgpack.pack(short))
    redis.call('PEXPIRE', key, KEPT)
    local left = math.max(free - own[2], 0)
    if doubt > 0 then
      left = 0
    end
    return 0, 0, math.max(math.min(own[4], free), 0), doubt, left, TTL
  end

  return claim_permits
end
