-- Buckets of tokens, exactly as lease.Ledger in Go.
--
-- grant_tokens(key, arg, look, twin, hold) grants tokens. Its argument has 8-byte numbers after its
-- kind:
--   num den burst ttl version waiting cost deadline keep nodes
--   doubtful_for   the time after a loss of state in which an absent bucket may be a lost one, 0 if a
--                  lost bucket lacks nothing
--   doubtful_debt  the initial debt of a bucket whose state is lost
--   used           the use that a node reports: then it asks for nothing, and the answer has the debt
--                  in place of the delay
--   optimistic     1 for a bucket that nodes report on: its debt may be larger than a burst, and every
--                  answer has the debt in place of the delay; 2 for a bucket that may owe more than a
--                  burst: the answer has the time until it is full, unless callers bring figures
--   most_num most_den most  the largest figures if callers bring their own, else 0
--   earns          the tokens that the limit earns in ttl
--   name           the name of the reservations that are granted, else eight zeros
-- With look it charges nothing, and not_before is 0 if all waiting requests can have their cost.
-- not_before is NEVER if a cost is above the burst. It returns stale granted kept not_before level
-- delay term, and one value more: IN_DOUBT if the bucket starts as a lost one, 0 if it starts full, nil
-- if it was known. An absent bucket of a draft, or one of an earlier draft, starts as a copy of the key
-- twin and is kept for at least hold; other buckets have neither.
--
-- charge_tokens(key, arg, granted, kept, draft, begins) charges a bucket for the grant of its twin, as
-- lease.Twins does. The numbers are: hold, then num den burst version doubtful_for doubtful_debt
-- most_num most_den most, then cost deadline ttl num den of the twin's ask, 2 for a bucket that may owe
-- more than a burst, and used of the twin's ask. An absent ledger of a draft stays absent. There is one
-- exception: if grant_tokens found the main ledger absent and either may be lost, the draft's absent
-- ledger is begun first. Then begins is IN_DOUBT if the main one may be lost, else 0.
--
-- settle_tokens(key, arg) settles a reservation by lease.Ledger.Settle, in the main state and in the
-- draft's: num den burst version of an absent bucket, nth and actual, and the name. It returns whether
-- the reservation was there, and the tokens that the main state gave back and took, in parts of a
-- token.
--
-- take_back_tokens(key, arg) takes tokens of a term back by lease.Ledger.TakeBack, in the main state
-- and in the draft's, once for each name: term unused used, and the name of the return. It returns the
-- number of tokens that went back.
--
-- A state is a MessagePack list: format version last debt num den burst, then end and tokens of each
-- lease, the earliest first. In the second format since, over and gone follow: since, see lease.Ledger;
-- over, the used tokens that a lowered limit has no room for, and gone, as in quota.State.
--
-- A call costs more than arithmetic here, so there are few calls: the current bucket is in the locals
-- below and not in a table. The functions are made only in a call of the script that has such a bucket,
-- because to make them all costs as much as a bucket.
local function functions_for_tokens()
  local FORMAT = 1
  local LONG = 2                     -- the format of a state with since, over and gone
  local SATURATED = 5629499534213120 -- where debts saturate: 1.25 * MAX_UNITS
  local MAX_PAIRS = 6                -- lease.MaxPairs
  local FIELDS = 7                   -- of a state before its leases
  local RESERVED = 900000000         -- the shortest time in which a reservation can be settled: lease.ReservedFor

  local version, last, debt, num, den, burst, since, over, gone
  local ends, tokens, leases -- when the leases end, their tokens, and how many leases there are

  -- n tokens in units; unit is the number of units of a token.
  local function units(n, unit)
    local product = n * unit -- Exact below 2^53. A larger product is rounded, but never to less than 2^53.
    if product > SATURATED then
      return SATURATED
    end
    return product
  end

  -- The rest of a debt after a span of earning.
  local function rest(owed, span)
    local earned = span * num -- Exact too: no debt is larger than 2^53.
    if earned > owed then
      return 0
    end
    return owed - earned
  end

  -- Whether an/ad < bn/bd, by continued fractions: the products would not fit.
  local function slower(an, ad, bn, bd)
    while true do
      local ar, br = math.fmod(an, ad), math.fmod(bn, bd)
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

  -- Reads a state. Returns false, or raises an error, if no grant can have left it.
  local function decode(raw)
    local s = cmsgpack.unpack(raw)
    local n = #s
    if not plausible(s, n) then
      return false
    end
    since, over, gone = 0, 0, 0
    if s[1] == LONG and n > FIELDS + 2 then
      since, over, gone = s[n - 2], s[n - 1], s[n]
      n = n - 3
    elseif s[1] ~= FORMAT then
      return false
    end
    if n < FIELDS or n > FIELDS + 2 * MAX_PAIRS or (n - FIELDS) % 2 ~= 0 then
      return false
    end
    version, last, debt, num, den, burst = s[2], s[3], s[4], s[5], s[6], s[7]
    if num < 1 or den < 1 or burst < 1 or num > MAX_UNITS or burst > quotient(MAX_UNITS, den) then
      return false
    end
    ends, tokens, leases = {s[8], s[10]}, {s[9], s[11]}, (n - FIELDS) / 2
    for i = 3, leases do
      ends[i], tokens[i] = s[FIELDS + 2 * i - 1], s[FIELDS + 2 * i]
    end
    return true
  end

  -- Tables are made with room for two leases, since growing costs more; few buckets have more.
  local function encode()
    local s
    if since > 0 or over > 0 then
      s = {LONG, version, last, debt, num, den, burst}
      for i = 1, leases do
        s[FIELDS + 2 * i - 1], s[FIELDS + 2 * i] = ends[i], tokens[i]
      end
      local n = FIELDS + 2 * leases
      s[n + 1], s[n + 2], s[n + 3] = since, over, gone
      return s
    elseif leases == 0 then
      return {FORMAT, version, last, debt, num, den, burst}
    elseif leases == 1 then
      return {FORMAT, version, last, debt, num, den, burst, ends[1], tokens[1]}
    end
    s = {FORMAT, version, last, debt, num, den, burst, ends[1], tokens[1], ends[2], tokens[2]}
    for i = 3, leases do
      s[FIELDS + 2 * i - 1], s[FIELDS + 2 * i] = ends[i], tokens[i]
    end
    return s
  end

  -- The tokens of leases that end at from or later.
  local function out(from)
    local n = 0
    for i = 1, leases do
      if ends[i] >= from then
        n = n + tokens[i]
      end
    end
    return n
  end

  -- The first instant at which n tokens are available if no other node takes any.
  local function ready(n)
    local owed = debt + (n - burst) * den
    local t = last
    if owed > 0 then
      t = t + ceiling(owed, num)
    end
    for i = 1, leases do
      local beyond = out(ends[i]) + n - burst
      if beyond > 0 then
        t = max(t, ends[i] + ceiling(units(beyond, den), num))
      end
    end
    return t
  end

  -- Moves over to an instant, as quota.Params.DrainOver.
  local function drain_over(to)
    local paid = ready(burst)
    if to > paid then
      over = over - min(math.floor((to - paid) * num / den), over)
    end
    if gone > 0 and to >= gone then
      over = 0
    end
    if over == 0 then
      gone = 0
    end
  end

  -- Refills step by step: each expiry raises the cap only from its own moment on.
  local function advance(to)
    if over > 0 then
      drain_over(to)
    end
    -- Refill from last, and from each lease that has ended.
    local left = rest(debt, to - last)
    local live = 0
    for i = 1, leases do
      if ends[i] <= to then
        local owed = rest(units(out(ends[i]), den), to - ends[i])
        if owed > left then
          left = owed
        end
      end
    end
    -- Keep the leases that have not ended.
    for i = 1, leases do
      if ends[i] > to then
        live = live + 1
        ends[live], tokens[live] = ends[i], tokens[i]
      end
    end
    leases, last = live, to
    debt = max(left, units(out(0), den))
  end

  -- Corrects a state that is ahead of the clock. Returns whether it was.
  local function set_back()
    local by = ahead(last, 1)
    if by == 0 then
      return false
    end
    last = last - by
    since = min(since, last)
    if gone > 0 then
      gone = max(gone - by, 1)
    end
    for i = 1, leases do
      ends[i] = ends[i] - by
    end
    return true
  end

  local function convert(to_num, to_den, to_burst)
    local used = ceiling(debt, den)
    num, den, burst = to_num, to_den, to_burst
    debt = units(used, den)
  end

  -- The time when over is gone, as quota.Params.GoneAfter, for a debt and over in the figures from
  -- before.
  local function gone_after(by_num, by_den, owed, was_over, kept)
    local at = max(last + ceiling(owed, by_num), gone)
    if (was_over == 0 or gone > 0) and at - last <= quotient(burst * den, num) then
      return at
    end
    local slowed = by_num / by_den - num / den
    if slowed > 0 then
      local wait = math.ceil(kept / slowed)
      if wait < MAX_UNITS / 4 then
        return max(at, last + wait)
      end
    end
    return 0
  end

  -- A part of a token, where unit is a whole token, in units of den.
  local function part_of(part, unit)
    if part == 0 then
      return 0
    end
    return min(math.ceil(part * (den / unit)) + 1, den)
  end

  -- Forgets leases, the earliest first, until no more than n tokens are leased.
  local function trim(n)
    local more = out(0) - n
    if more <= 0 then
      return
    end
    local live = 0
    for i = 1, leases do
      local less = min(more, tokens[i])
      more = more - less
      if tokens[i] > less then
        live = live + 1
        ends[live], tokens[live] = ends[i], tokens[i] - less
      end
    end
    leases = live
  end

  -- The number of tokens that nodes of an optimistic bucket can use beyond its burst:
  -- lease.Overshoot.
  local function overshoot(nodes)
    if nodes <= 1 then
      return 0
    end
    local slack = quotient(burst, 100) * 50 + quotient(burst % 100 * 50, 100)
    return (nodes - 1) * max(1, quotient(slack, nodes - 1))
  end

  -- Converts the bucket to other figures, as lease.Ledger.carryOver.
  local function carry(to_num, to_den, to_burst, owing, nodes)
    local was_num, was_den, was_debt, was_over = num, den, debt, over
    local beyond = 0
    -- A bucket that may owe more than its burst keeps that debt.
    if owing > 0 then
      beyond = max(0, ceiling(debt, den) - burst)
    end
    num, den, burst = to_num, to_den, to_burst
    if owing == 1 then
      beyond = min(beyond, overshoot(nodes))
    end
    local room = burst + beyond
    -- Convert the debt; the part without room becomes over.
    local used, part = min(quotient(was_debt, was_den) + over, SATURATED), math.fmod(was_debt, was_den)
    if used < room then
      debt, over, gone = units(used, den) + part_of(part, was_den), 0, 0
    else
      if part > 0 then
        used = used + 1
      end
      debt, over = units(room, den), used - room
      gone = over > 0 and gone_after(was_num, was_den, was_debt, was_over, over) or 0
    end
    trim(room)
  end

  -- Moves the bucket to an instant and to other figures. The figures count from that instant, or
  -- from the last use, whichever leaves the smaller debt.
  local function change(to, to_num, to_den, to_burst, owing, nodes)
    local was_last, was_debt, was_num, was_den, was_burst, was_over, was_gone = last, debt, num, den, burst, over, gone
    local was_ends, was_tokens, was_leases = {}, {}, leases
    for i = 1, leases do
      was_ends[i], was_tokens[i] = ends[i], tokens[i]
    end
    -- First with the figures changed at the instant.
    advance(to)
    carry(to_num, to_den, to_burst, owing, nodes)
    local late_debt, late_over, late_gone, late_ends, late_tokens, late_leases = debt, over, gone, ends, tokens, leases
    -- Then with the figures changed at the last use.
    last, debt, num, den, burst, over, gone = was_last, was_debt, was_num, was_den, was_burst, was_over, was_gone
    ends, tokens, leases = was_ends, was_tokens, was_leases
    carry(to_num, to_den, to_burst, owing, nodes)
    advance(to)
    -- Take the result with the smaller debt.
    if late_debt < debt or late_debt == debt and late_over < over then
      debt, over, gone, ends, tokens, leases = late_debt, late_over, late_gone, late_ends, late_tokens, late_leases
    end
  end

  -- Counts the tokens in over again, as far as the largest burst has room for them.
  local function count_over(most)
    local n = min(over, min(most, quotient(SATURATED, den)) - ceiling(debt, den))
    if n > 0 then
      over = over - n
      debt = debt + units(n, den)
      if over == 0 then
        gone = 0
      end
    end
  end

  -- Moves the debt beyond the burst to over.
  local function cap()
    local beyond = debt - max(burst * den, units(out(0), den))
    if beyond > 0 then
      debt = debt - beyond
      over, gone = min(over + ceiling(beyond, den), SATURATED), 0
    end
  end

  -- Converts the bucket to other figures, without a cap at their burst. Returns false if these
  -- cannot express the debt exactly.
  local function restate(to_num, to_den, to_burst)
    if num == to_num and den == to_den and burst == to_burst then
      return true
    end
    local used = ceiling(debt, den)
    if used > quotient(MAX_UNITS, to_den) then
      return false
    end
    num, den, burst = to_num, to_den, to_burst
    debt = max(used * to_den, units(out(0), den))
    return true
  end

  -- Makes sure that the figures can express n tokens more: the bucket's figures, or the largest if
  -- callers bring their own and the units of a slow caller's figures are too small.
  local function express(n, most_num, most_den, most)
    if most > 0 and ceiling(debt, den) + min(n, most) > quotient(SATURATED, den) then
      convert(most_num, most_den, most)
    end
  end

  -- The debt in the units of a node: units of the largest figures if callers bring their own.
  local function debt_in(most_den)
    if most_den == 0 or most_den == den then
      return debt
    end
    return units(ceiling(debt, den), most_den)
  end

  -- Records that the bucket uses other figures than before.
  local function changed_from(old_num, old_den, old_burst, owing)
    if owing ~= 1 and (num ~= old_num or den ~= old_den or burst ~= old_burst) then
      since = last
    end
  end

  -- The time in which reservations can be settled.
  local function settled_for()
    return max(RESERVED, ceiling(burst * den, num))
  end

  -- The instant until which the state must be kept.
  local function forgettable()
    local at = ready(burst)
    if over > 0 then
      local paid = at
      at = paid + ceiling(units(over, den), num)
      if gone > 0 then
        at = min(at, gone)
      end
      at = max(at, paid)
    end
    return at
  end

  -- Moves the bucket to an instant and to new figures. Reported use can be more than the bucket's
  -- tokens.
  local function bring(to, to_num, to_den, to_burst, most_num, most_den, most, owing, nodes)
    local old_num, old_den, old_burst = num, den, burst
    if to < last then
      to = last
    end
    if most > 0 then
      count_over(most)
      if (num ~= to_num or den ~= to_den or burst ~= to_burst) and slower(most_num, most_den, num, den) then
        convert(most_num, most_den, most)
      end
      advance(to)
      restate(to_num, to_den, to_burst)
    elseif num == to_num and den == to_den and burst == to_burst then
      advance(to)
    else
      change(to, to_num, to_den, to_burst, owing, nodes)
    end
    changed_from(old_num, old_den, old_burst, owing)
  end

  -- The end of tokens that are leased for span now: rounded up to the next multiple of a piece.
  local function end_of(span, pieces)
    if span <= 0 then
      return last
    end
    local w = ceiling(span, pieces)
    return (quotient(last, w) + pieces + 1) * w
  end

  -- Adds a lease of n tokens for span.
  local function book(n, span, pieces)
    if n <= 0 or span <= 0 then
      return
    end
    -- Find the place of the lease by its end.
    local e = end_of(span, pieces)
    local at = 1
    while at <= leases and ends[at] < e do
      at = at + 1
    end
    if at <= leases and ends[at] == e then
      tokens[at] = tokens[at] + n
      return
    end
    -- Insert it; if there are too many leases, join the first two.
    for i = leases, at, -1 do
      ends[i + 1], tokens[i + 1] = ends[i], tokens[i]
    end
    ends[at], tokens[at], leases = e, n, leases + 1
    if leases > MAX_PAIRS then
      tokens[2] = tokens[2] + tokens[1]
      for i = 2, leases do
        ends[i - 1], tokens[i - 1] = ends[i], tokens[i]
      end
      leases = leases - 1
    end
  end

  -- Charges n tokens, and leases them for span.
  local function lend(n, span, pieces)
    debt = debt + n * den
    book(n, span, pieces)
  end

  -- Takes over the draft's ledger if the ask is the first with its figures since the draft was
  -- promoted. That ledger has counted all use by these figures. Returns whether it took it over.
  local function promote(key, raw, ask_version, ask_num, ask_den, ask_burst, most)
    local draft = redis.pcall('GET', key .. ':draft')
    local fine, good = pcall(decode, draft)
    if fine and good and policy_set(version) == policy_set(ask_version)
      and (most > 0 or num == ask_num and den == ask_den and burst == ask_burst) then
      return true
    end
    decode(raw)
    return false
  end

  -- IN_DOUBT if the bucket may lack tokens that were not used, else 0.
  local function state_of(key, doubtful_for)
    local at = doubtful_for > 0 and lost_at(key) or 0
    return at > 0 and now < at + 2 * doubtful_for and IN_DOUBT or 0
  end

  local function grant_tokens(key, arg, look, twin, hold)
    local ask_num, ask_den, ask_burst, ttl, ask_version, waiting, cost, deadline, keep, nodes, doubtful_for, doubtful_debt, used,
      optimistic, most_num, most_den, most, earns = struct.unpack('>I8I8I8I8I8I8I8I8I8I8I8I8I8I8I8I8I8I8', arg, 2)

    local held_num, held_den, held_burst, held_debt, held_since, held_over, held_gone -- the bucket's figures, where callers bring their own
    -- Read the state, or the twin's, if a draft has none of its own yet.
    local fits, lowered = true, false
    local known, doubtful = false, nil
    local raw = redis.pcall('GET', key) -- For a key of another type this is an error, a table, which decode cannot read.
    local seed
    if twin then
      local fine, good = pcall(decode, raw)
      if not raw or fine and good and policy_set(version) < policy_set(ask_version) then
        raw, seed = nil, redis.pcall('GET', twin)
      end
    end
    -- Find out whether the state is known, lost or new.
    if raw or seed then
      local fine, good = pcall(decode, raw or seed)
      known = fine and good
      doubtful = not known
      if known and seed then
        version = 0
      end
    else
      local at = lost_at(key)
      doubtful = at > 0 and now < at + doubtful_for
    end
    local begun = not known and (doubtful and IN_DOUBT or 0) or nil
    -- Take the figures of the ask, unless it is stale.
    local changed, was_back = doubtful, false
    if known then
      changed = num ~= ask_num or den ~= ask_den or burst ~= ask_burst
      if changed and version > ask_version then
        return 1, 0, 0, 0, 0, 0, 0
      end
      if (changed or most > 0) and not twin and policy_set(version) < policy_set(ask_version) then
        local promoted = promote(key, raw, ask_version, ask_num, ask_den, ask_burst, most)
        changed = num ~= ask_num or den ~= ask_den or burst ~= ask_burst
        if most > 0 and changed and version > ask_version then
          return 1, 0, 0, 0, 0, 0, 0
        end
        changed = changed and (most > 0 or not promoted)
      end
      was_back = set_back()
      changed = was_back or changed
      version = max(version, ask_version)
    else
      version, last, debt, num, den, burst = ask_version, now, 0, ask_num, ask_den, ask_burst
      ends, tokens, leases, since, over, gone = {}, {}, 0, optimistic == 2 and now or 0, 0, 0
      if doubtful then
        debt = doubtful_debt
      end
    end

    -- Move the bucket to now and to the figures of the ask.
    if most > 0 and known and used == 0 and (num ~= ask_num or den ~= ask_den or burst ~= ask_burst) then
      local old_num, old_den, old_burst = num, den, burst
      lowered = slower(most_num, most_den, num, den)
      if lowered then -- The limit was changed: the bucket earns no more than the new limit.
        change(max(now, last), most_num, most_den, most, optimistic, nodes)
        if optimistic == 0 then
          cap()
        end
        debt = max(debt, units(out(0), den))
      else
        advance(max(now, last))
      end
      changed_from(old_num, old_den, old_burst, optimistic)
      count_over(most)
      held_num, held_den, held_burst, held_debt, held_since, held_over, held_gone = num, den, burst, debt, since, over, gone
      fits = restate(ask_num, ask_den, ask_burst)
      if fits then
        count_over(most)
      end
      changed_from(held_num, held_den, held_burst, optimistic)
    else
      bring(now, ask_num, ask_den, ask_burst, most_num, most_den, most, optimistic, nodes)
    end
    -- A report of use only charges.
    if used > 0 then
      express(used, most_num, most_den, most)
      debt = min(debt + units(used, den), SATURATED)
      save(key, encode(), max(forgettable(), now + hold))
      local level = max(0, ask_burst - ceiling(debt, den))
      return state_of(key, doubtful_for), 0, 0, 0, level, debt_in(most_den), 0, begun
    end
    -- Grant to waiting requests first.
    if optimistic == 0 and most == 0 then
      cap()
    end
    debt = max(units(out(0), den), debt)
    local kept, not_before, delay, term = 0, 0, 0, 0
    local available = fits and max(0, quotient(burst * den - debt, den)) or 0
    local granted = min(waiting, quotient(available, cost))
    local short = granted < waiting or not look and waiting == 0 and keep == 0 and available < cost
    if look then
      granted, keep = 0, 0
    end
    if granted > 0 then
      if debt > 0 then
        delay = ceiling(debt, num) + last - now
      end
      local name = reserved_name(arg)
      if name then
        local counts = last + settled_for()
        reserve(key, name, granted, last, end_of(deadline, 1), cost, counts)
      end
      lend(granted * cost, deadline, 1)
      if deadline > 0 then
        term = term_of(end_of(deadline, 1))
      end
      available = available - granted * cost
    end
    -- Then grant tokens to keep.
    if ttl > 0 and keep > 0 and available > 0 and not short then
      kept = keep_share(keep, nodes, available, earns, cost)
      if kept > 0 then
        lend(kept, ttl, 2)
        term = term_of(end_of(ttl, 2))
        available = available - kept
      end
    end
    -- Compute the wait of requests that got nothing.
    if held_num and granted == 0 and kept == 0 and not (fits and slower(held_num, held_den, ask_num, ask_den)) then
      -- The bucket continues with its old figures, and the caller waits for its own.
      num, den, burst, debt = held_num, held_den, min(ask_burst, quotient(MAX_UNITS, held_den)), held_debt
      if short then
        not_before = cost > ask_burst and NEVER or max(1, ready(min(cost, burst)) - now)
      end
      burst, since, over, gone, changed = held_burst, held_since, held_over, held_gone, was_back or lowered
    elseif short then
      not_before = cost > burst and NEVER or max(1, ready(cost) - now)
    end
    -- Store the bucket, if it has changed.
    if changed or granted > 0 or kept > 0 then
      save(key, encode(), max(forgettable(), now + hold))
    end
    if optimistic == 1 then
      delay = debt_in(most_den)
    elseif optimistic == 2 and most == 0 then
      delay = max(ready(burst) - now, 0)
    end
    local state = tells(granted, not_before) and state_of(key, doubtful_for) or 0
    return state, granted, kept, not_before, available, delay, term, begun
  end

  local function charge_tokens(key, arg, granted, kept, draft, begins)
    local hold, ask_num, ask_den, ask_burst, ask_version, doubtful_for, doubtful_debt, most_num, most_den, most, cost,
      deadline, ttl, by_num, by_den, owing, used = struct.unpack('>I8I8I8I8I8I8I8I8I8I8I8I8I8I8I8I8I8', arg, 2)
    -- Read the state, or start a new one.
    local raw = redis.pcall('GET', key)
    local fine, good = false, false
    if begins and raw then
      return
    elseif raw then
      fine, good = pcall(decode, raw)
    elseif draft and not begins then
      return
    end
    if fine and good then
      if draft and policy_set(version) < policy_set(ask_version) then
        return
      end
      if version > ask_version then
        ask_num, ask_den, ask_burst, ask_version = num, den, burst, version
      end
      set_back()
      version = ask_version
    else
      version, last, debt, num, den, burst = ask_version, now, 0, ask_num, ask_den, ask_burst
      ends, tokens, leases, since, over, gone = {}, {}, 0, owing == 2 and now or 0, 0, 0
      local at = not raw and lost_at(key) or 0
      local doubtful = raw or at > 0 and now < at + doubtful_for
      if begins == 0 and not doubtful then
        return
      elseif doubtful then
        debt = doubtful_debt
      end
      used = begins and 0 or used
    end
    -- Charge the grant, up to the largest burst; the rest becomes over.
    bring(now, ask_num, ask_den, ask_burst, most_num, most_den, most, owing, 0)
    local waited = granted * cost
    local old_num, old_den, old_burst = num, den, burst
    express(waited + kept + used, most_num, most_den, most)
    changed_from(old_num, old_den, old_burst, owing)
    local before, largest = debt, max(burst, most)
    book(min(waited, largest), deadline, 1)
    book(min(kept, largest), ttl, 2)
    trim(largest)
    local full = before + units(waited + kept + used, den)
    debt = max(before, min(full, units(largest, den)), units(out(0), den))
    if full > debt then -- The rest counts as if the twin's limit had been lowered.
      local was_over = over
      over = min(over + ceiling(full - debt, den), SATURATED)
      gone = gone_after(by_num, by_den, units(ceiling(full, den) + was_over, by_den), was_over, over)
    end
    save(key, encode(), max(forgettable(), now + hold))
  end

  local function settle_tokens(key, arg)
    local ask_num, ask_den, ask_burst, ask_version, nth, actual, name = struct.unpack('>I8I8I8I8I8I8c8', arg, 2)
    local from, at, taken = take_reservation(key, name, nth)
    if not from then
      return false
    end
    -- Settles the reservation in one ledger. Returns the tokens that went back, below 0 if it took
    -- more.
    local function settle(of, draft)
      local raw = redis.call('GET', of)
      if raw then
        local fine, good = pcall(decode, raw)
        if not (fine and good) then
          return 0
        end
      elseif draft or actual <= taken then
        return 0
      else
        version, last, debt, num, den, burst = ask_version, now, 0, ask_num, ask_den, ask_burst
        ends, tokens, leases, since, over, gone = {}, {}, 0, now, 0, 0
      end
      advance(max(now, last))
      local over, owed = actual - taken, debt
      if over < 0 then
        if from > last or from < since or last >= from + settled_for() then
          return 0
        end
        for i = 1, leases do
          if ends[i] == at and tokens[i] >= -over then
            tokens[i] = tokens[i] + over
          end
        end
        local back = min(units(-over, den), rest(units(taken, den), max(last - at, 0)), debt)
        if back == 0 then
          return 0
        end
        debt = max(debt - back, units(out(0), den))
      else
        debt = max(min(debt + units(over, den), SATURATED), units(out(0), den))
      end
      save(of, encode(), max(forgettable(), now))
      return (owed - debt) / den
    end
    local back = 0
    if actual ~= taken then
      back = settle(key, false)
      settle(key .. ':draft', true)
    end
    return true, in_parts(back), in_parts(-back)
  end

  local function take_back_tokens(key, arg)
    local term, unused, used, name = struct.unpack('>I8I8I8c8', arg, 2)
    if end_of_term(term, now) + LATE <= now or not first_time(key, name, end_of_term(term, now) + LATE) then
      return 0
    end
    -- Takes tokens back after the end of their term: lease.Ledger.takeBackLate in Go.
    local function late(ended, n)
      if n <= 0 or last >= ended + LATE or ended < since + LATE or over > 0 then
        return 0
      end
      local owes = max(debt - rest(units(n, den), last - ended), units(out(0), den))
      if owes >= debt then
        return 0
      end
      debt = owes
      return n
    end
    -- Takes tokens back in one ledger. Returns their number.
    local function take(of)
      local raw = redis.pcall('GET', of)
      local fine, good = pcall(decode, raw)
      if not (raw and fine and good) then
        return 0
      end
      advance(max(now, last))
      local ended, taken, spent, live = end_of_term(term, last), 0, 0, 0
      if ended <= last then
        taken = late(ended, unused)
        if taken > 0 then
          save_again(of, encode())
        end
        return taken
      end
      for i = 1, leases do
        local left = tokens[i]
        if ends[i] >= ended then
          local back = min(left, unused - taken)
          local gone = min(left - back, used - spent)
          taken, spent, left = taken + back, spent + gone, left - back - gone
        end
        if left > 0 then
          live = live + 1
          ends[live], tokens[live] = ends[i], left
        end
      end
      if taken + spent == 0 then
        return 0
      end
      leases = live
      debt = max(debt - units(taken, den), units(out(0), den))
      save_again(of, encode())
      return taken
    end
    return max(take(key), take(key .. ':draft'))
  end

  return grant_tokens, charge_tokens, settle_tokens, take_back_tokens
end
