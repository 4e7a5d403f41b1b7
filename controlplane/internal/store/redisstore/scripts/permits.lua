-- Permits of requests in flight, exactly as inflight.Ledger in Go.
--
-- claim_permits(key, arg) answers a claim: an argument of 8-byte numbers after its kind, seq hold
-- lent need spare limit nodes, and then the node. It returns six numbers, like grant_tokens: 0, 0, the
-- permits, the time for which no node gets more than it has because permits may be lost, the number of
-- free permits, and the time for which the permits last. All are 0 for a claim that does not count.
--
-- A state is a hash: node -> seq permits until ceiling want. The field without a name has the sum of
-- all permits, the earliest end of permits, the number of nodes, and the time of the last claim. So
-- most claims read only this field and the field of their own node: all nodes are read only when the
-- earliest permits end. The field 'short' has node permits want at of each node that lately lacked
-- permits, the latest last.
local function functions_for_permits()
  local TTL = 10000000   -- inflight.TTL
  local MAX_NODES = 10000 -- inflight.MaxNodes
  local KEPT = 60000     -- milliseconds: more than any permits last
  local CHUNK = 1000     -- of fields in one call
  local GIVEN_BACK = 1000000 -- leases.GivenBackIn
  local TOTAL, SHORT = '', 'short'
  local WANT_FOR, MOST_SHORT = 1000000, 32 -- inflight.wantFor, inflight.mostShort

  -- Drops the nodes whose permits have ended. Permits that end later than permits given now were
  -- given before a clock was set back. Returns the sum of the other permits, their earliest end,
  -- and the number of their nodes.
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

  -- The time of the last loss of permits, in microseconds, 0 for never. Permits have a marker of
  -- their own, since control planes give them back, and a server that took over may have lost none.
  local lent_lost
  local function lent_lost_at(key)
    lent_lost = lent_lost or tonumber(redis.call('GET', string.match(key, '^[^}]*}:') .. 'lent') or '') or lost_at(key)
    return lent_lost
  end

  -- The number of free permits that a node gets.
  local function granted(free, hold, need, spare, nodes)
    local n = math.min(hold + need, free)
    if free > n then
      n = n + math.min(spare, quotient(free - n, 2 * nodes))
    end
    return n
  end

  -- Returns the permits that a node may keep when it leaves a share to nodes that lack permits, and
  -- the list of these nodes.
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
    -- Read the sum of all permits, and drop the permits that have ended.
    local sum, first, count, last = 0, now + TTL, 0, now
    local total = redis.call('HGET', key, TOTAL)
    if total then
      sum, first, count, last = unpack(cmsgpack.unpack(total))
    end
    if first <= now or now < last then
      sum, first, count = sweep(key)
    end
    -- Read the node's own permits. An outdated claim, or one node too many, gets nothing.
    local held, packed = unpack(redis.call('HMGET', key, node, SHORT))
    local own = held and cmsgpack.unpack(held) or {0, 0, 0, 0, 0}
    if seq < own[1] or not held and count >= MAX_NODES then
      local _, short = leave(0, '', packed)
      redis.call('HSET', key, TOTAL, cmsgpack.pack({sum, first, count, now}), SHORT, cmsgpack.pack(short))
      return 0, 0, 0, 0, 0, 0
    end
    -- Find the free permits and the node's share of them.
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
    -- Take the claim in.
    if seq > own[1] then
      own[4] = keeps
      own[2] = math.max(keeps, hold)
      own[5] = math.max(math.min(hold + need - keeps, need), 0)
    end
    if not held then
      count = count + 1
    end
    own[1], own[3] = seq, now + TTL
    -- Store it, with the list of nodes that lack permits.
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
