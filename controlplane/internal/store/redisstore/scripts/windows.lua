-- Buckets of the window algorithms, exactly as lease.WindowLedger and quota.Windows in Go.
--
-- grant_windows and charge_windows do for windows what grant_tokens and charge_tokens do for tokens. The
-- numbers of grant_windows are:
--   algorithm quota length grain offset ttl version waiting cost deadline keep nodes
--   leased         the time after a loss of state in which tokens may still be used that were granted
--                  before the loss, 0 if a lost bucket lacks nothing
--   doubtful_used  the initial use of a bucket whose state is lost
--   own            a caller's own quota, else 0
--   earns          the tokens that the limit earns in ttl
--   owing          not 0 if costs are known later
--   name           the name of the reservations that are granted, else eight zeros
-- The numbers of charge_windows are: hold, algorithm quota length grain offset version leased
-- doubtful_used and the longest lease of the bucket; cost deadline ttl of the twin's ask; reach, the time
-- for which its marks count; and owing.
--
-- settle_windows(key, arg) settles a reservation by lease.WindowLedger.Settle, in the main state and in
-- the draft's: nth and actual, and the name. It returns the same values as settle_tokens.
--
-- take_back_windows(key, arg) takes tokens of a term back by lease.WindowLedger.TakeBack, like
-- take_back_tokens.
--
-- A state is a MessagePack list: format version last algorithm quota length grain offset reach
-- kept_until, then start and count of each mark, the earliest first; each start after the first is the
-- distance from the start before it. In the second format since, released and stayed follow: see
-- quota.History, where stayed is Kept and kept_until is Until.
local function functions_for_windows()
  local FORMAT = 1
  local SINCE = 2       -- the format of a state with since, released and stayed
  local FIELDS = 10     -- of a state before its marks
  local MAX_MARKS = 257 -- quota.MaxMarks
  local KEPT_PARTS = 32 -- quota.keptParts
  local LONGEST_LEASE = 30000000 -- quota.LongestLease
  local FIXED, SLIDING, COUNTER, LOG = 2, 3, 4, 5 -- quota.Algorithm

  local version, last, algorithm, quota, length, grain, offset, reach, kept_until, since, released, stayed
  local starts, counts, marks -- the starts of the marks, their tokens, and the number of marks

  -- Reads a state. Returns false, or raises an error, if no grant can have left it.
  local function decode(raw)
    local s = cmsgpack.unpack(raw)
    local n = #s
    if not plausible(s, n) then
      return false
    end
    since, released, stayed = 0, 0, 0
    if s[1] == SINCE and n >= FIELDS + 3 then
      since, released, stayed, n = s[n - 2], s[n - 1], s[n], n - 3
    elseif s[1] ~= FORMAT then
      return false
    end
    if n < FIELDS or n > FIELDS + 2 * MAX_MARKS or (n - FIELDS) % 2 ~= 0 then
      return false
    end
    version, last, algorithm, quota, length, grain, offset, reach, kept_until = s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10]
    if algorithm < FIXED or algorithm > LOG or quota < 1 or quota > MAX_UNITS or grain < 1 or grain > length or offset >= grain then
      return false
    end
    starts, counts, marks = {}, {}, (n - FIELDS) / 2
    local start = 0
    for i = 1, marks do
      local step = s[FIELDS + 2 * i - 1]
      if step < 1 then
        return false
      end
      start = start + step
      starts[i], counts[i] = start, s[FIELDS + 2 * i]
    end
    return true
  end

  local function encode()
    local s = {FORMAT, version, last, algorithm, quota, length, grain, offset, reach, kept_until}
    local before = 0
    for i = 1, marks do
      s[FIELDS + 2 * i - 1], s[FIELDS + 2 * i] = starts[i] - before, counts[i]
      before = starts[i]
    end
    if since > 0 or released > 0 then
      s[1], s[#s + 1], s[#s + 2], s[#s + 3] = SINCE, since, released, stayed
    end
    return s
  end

  local function start_of(at)
    return at - (at - offset) % grain
  end

  -- The unit in which the counter weighs the tokens of the window before.
  local function unit(before)
    if max(quota, before) > quotient(MAX_UNITS, length) then
      return 1000
    end
    return 1
  end

  local function leaves(start)
    if algorithm == FIXED then
      return start + grain
    elseif algorithm == COUNTER then
      return start + 2 * length
    end
    return start + grain - 1 + length
  end

  -- The largest count of a mark.
  local function most_counted()
    if algorithm == COUNTER then
      return quotient(MAX_UNITS, quotient(length, 1000))
    end
    return MAX_UNITS
  end

  -- Joins marks that no longer count and are only kept, as quota.Windows.thinMarks.
  local function thin()
    if last >= kept_until or reach <= leaves(0) then
      reach, kept_until = 0, 0
      return
    end
    local part, most, kept, all = max(quotient(reach, KEPT_PARTS), 1), most_counted(), 0, marks
    for i = 1, all do
      local start, count = starts[i], counts[i]
      if kept > 0 and (all - i + 1 + kept > MAX_MARKS - 2
        or leaves(start) <= last and quotient(starts[kept], part) == quotient(start, part)) then
        count = min(count + counts[kept], most)
        kept = kept - 1
      end
      kept = kept + 1
      starts[kept], counts[kept] = start, count
    end
    marks = kept
  end

  -- Keeps each mark for at least span after its start.
  local function keep_for(span)
    if marks > 0 then
      reach, kept_until = max(reach, span), max(kept_until, starts[marks] + span)
    end
  end

  -- Moves the history to an instant, and drops marks that neither count nor are kept.
  local function advance(to)
    -- Find the marks that are gone.
    last = math.max(last, to)
    if reach > 0 then
      keep_for(reach)
    end
    local gone, keeps = 0, reach > 0 and last < kept_until
    while gone < marks and leaves(starts[gone + 1]) <= last and not (keeps and starts[gone + 1] + reach > last) do
      gone = gone + 1
    end
    if gone > 0 then
      for i = gone + 1, marks do
        starts[i - gone], counts[i - gone] = starts[i], counts[i]
      end
      marks = marks - gone
    end
    if reach > 0 then
      thin()
    end
  end

  -- The instant until which the state must be kept.
  local function forgettable()
    local at = last
    if marks > 0 then
      at = max(last, leaves(starts[marks]), min(starts[marks] + reach, kept_until))
    end
    if released > 0 then
      at = max(at, leaves(start_of(released + 100000))) -- two lease.Deadline
    end
    return at
  end

  -- Corrects a state that is ahead of the clock. Returns whether it was. The state stays ahead by
  -- less than a grain, so that its marks still begin where windows begin.
  local function set_back()
    local by = ahead(last, grain)
    last, kept_until = last - by, max(kept_until - by, 0)
    if by > 0 then
      since, released = min(since, last), min(released, last)
    end
    for i = 1, marks do
      starts[i] = starts[i] - by
    end
    return by > 0
  end

  local function add(at, n)
    local start = start_of(at)
    local i = marks
    while i > 0 and starts[i] > start do
      i = i - 1
    end
    if i > 0 and starts[i] == start then
      counts[i] = counts[i] + n
      return
    end
    for j = marks, i + 1, -1 do
      starts[j + 1], counts[j + 1] = starts[j], counts[j]
    end
    starts[i + 1], counts[i + 1], marks = start, n, marks + 1
  end

  -- The counts of the window before the window of an instant, and of that window.
  local function counters(at)
    local start, before, current = start_of(at), 0, 0
    for i = 1, marks do
      if starts[i] == start then
        current = counts[i]
      elseif starts[i] == start - length then
        before = counts[i]
      end
    end
    return before, current
  end

  -- The tokens left at an instant not before last; below 0 if more than a lowered quota is used.
  local function available(at)
    if algorithm == COUNTER then
      local before, current = counters(at)
      local step = unit(before)
      local whole = length / step
      local covered = whole - quotient(at - start_of(at), step)
      return quota - current - ceiling(before * covered, whole)
    end
    -- Other algorithms: the marks that count at the instant.
    local left = quota
    if algorithm == FIXED then
      local start = start_of(at)
      for i = 1, marks do
        if starts[i] == start then
          left = left - counts[i]
        end
      end
      return left
    end
    for i = 1, marks do
      if leaves(starts[i]) > at then
        left = left - counts[i]
      end
    end
    return left
  end

  -- The tokens that can be granted now for use within span.
  local function room(span)
    local left = available(last)
    if algorithm == FIXED then
      left = math.min(left, available(last + span))
    end
    return math.max(0, left)
  end

  -- Counts tokens at the last instant at which they may be used. For fixed windows they count in
  -- both windows in which they may be used.
  local function lend(n, span)
    local at = last + span
    if algorithm == COUNTER then
      at = last
    elseif algorithm == FIXED and start_of(at) ~= start_of(last) then
      add(last, n)
    end
    add(at, n)
  end

  -- The first instant at which a counter with fewer tokens now can grant n tokens.
  local function ready_by_weight(n)
    local before, current = counters(last)
    local start = start_of(last)
    if current + n > quota then
      before, current, start = current, 0, start + length
    end
    if before == 0 then
      return start
    end
    local step = unit(before)
    local whole = length / step
    return start + math.max(0, whole - quotient((quota - current - n) * whole, before)) * step
  end

  -- The first instant at which n tokens are available for use within span if no other node takes
  -- any.
  local function ready(n, span)
    if algorithm == FIXED then
      local at = last
      for i = 1, marks do
        if math.min(available(at), available(at + span)) >= n then
          break
        end
        at = math.max(at, leaves(starts[i]))
      end
      return at
    end
    local over = n - available(last)
    if over <= 0 then
      return last
    elseif algorithm == COUNTER then
      return ready_by_weight(n)
    end
    for i = 1, marks do
      local at = leaves(starts[i])
      if at > last then
        over = over - counts[i]
        if over <= 0 then
          return at
        end
      end
    end
    return last
  end

  -- The time until clients find the bucket full.
  local function full_after()
    if marks == 0 then
      return 0
    end
    local full = leaves(starts[marks])
    if algorithm == FIXED then
      full = start_of(last) + grain
    end
    return math.max(0, full - now)
  end

  -- Bounds the number of marks and their counts, as quota.Windows.Saturate.
  local function saturate()
    local most, more = most_counted(), marks - MAX_MARKS
    if more > 0 then
      for i = 1, more do
        counts[more + 1] = counts[more + 1] + counts[i]
      end
      for i = more + 1, marks do
        starts[i - more], counts[i - more] = starts[i], counts[i]
      end
      marks = MAX_MARKS
    end
    for i = 1, marks do
      counts[i] = min(counts[i], most)
    end
  end

  -- Moves the history to an instant and to other figures, as quota.Windows.Convert: each mark
  -- stays, at the latest instant that it can have.
  local function convert(to, to_algorithm, to_quota, to_length, to_grain, to_offset)
    local used = last
    advance(to)
    keep_for(leaves(0))
    -- Take the new figures, then add each old mark again.
    local old_starts, old_counts, old_marks, old_algorithm, old_grain = starts, counts, marks, algorithm, grain
    algorithm, quota, length, grain, offset = to_algorithm, to_quota, to_length, to_grain, to_offset
    starts, counts, marks = {}, {}, 0
    for i = old_marks, 1, -1 do
      local start, count = old_starts[i], old_counts[i]
      local at = min(start + old_grain - 1, max(start, used + LONGEST_LEASE))
      if start <= used then
        at = min(at, used)
      elseif start <= last then
        at = min(at, last)
      elseif algorithm == COUNTER then
        at = last
      elseif algorithm == FIXED and old_algorithm == FIXED then
        at = start
      elseif algorithm == FIXED and start_of(at) ~= start_of(last) then
        add(last, count)
      end
      add(at, count)
    end
    saturate()
    advance(last)
  end

  -- Takes over the draft's ledger, as for tokens. Returns whether it did.
  local function promote(key, raw, ask_version, ask_algorithm, ask_quota, ask_length, ask_grain, ask_offset)
    local draft = redis.pcall('GET', key .. ':draft')
    local fine, good = pcall(decode, draft)
    if fine and good and policy_set(version) == policy_set(ask_version) and algorithm == ask_algorithm and quota == ask_quota and length == ask_length
      and grain == ask_grain and offset == ask_offset then
      return true
    end
    decode(raw)
    return false
  end

  -- Moves the bucket of a key to now and to the figures of the ask. Returns whether the state must
  -- be stored, or nil if the ask is stale; and the last value that grant_tokens returns. An absent
  -- bucket starts as a copy of the key twin, if there is one.
  local function open(key, ask_version, ask_algorithm, ask_quota, ask_length, ask_grain, ask_offset, leased, doubtful_used, owing, twin)
    local raw = redis.pcall('GET', key) -- For a key of another type this is an error, a table, which decode cannot read.
    local seed
    if twin then
      local fine, good = pcall(decode, raw)
      if not raw or fine and good and policy_set(version) < policy_set(ask_version) then
        raw, seed = nil, redis.pcall('GET', twin)
      end
    end
    -- A known state.
    if raw or seed then
      local fine, good = pcall(decode, raw or seed)
      if fine and good then
        if seed then
          version = 0
        end
        local changed = algorithm ~= ask_algorithm or quota ~= ask_quota or length ~= ask_length or grain ~= ask_grain
          or offset ~= ask_offset
        if changed and version > ask_version then
          return nil
        end
        if changed and not twin and policy_set(version) < policy_set(ask_version) then
          changed = not promote(key, raw, ask_version, ask_algorithm, ask_quota, ask_length, ask_grain, ask_offset)
        end
        version = math.max(version, ask_version)
        local was_ahead = set_back()
        if changed then
          convert(now, ask_algorithm, ask_quota, ask_length, ask_grain, ask_offset)
        else
          advance(now)
        end
        return changed or was_ahead
      end
    end
    -- A new state, or a lost one.
    version, last, starts, counts, marks, reach, kept_until = ask_version, now, {}, {}, 0, 0, 0
    algorithm, quota, length, grain, offset = ask_algorithm, ask_quota, ask_length, ask_grain, ask_offset
    since, released, stayed = owing ~= 0 and now or 0, 0, 0
    local lost = not raw and not seed and lost_at(key) or 0
    if raw or seed or lost > 0 and now < leaves(start_of(lost + leased)) then
      if doubtful_used > 0 then
        add(now, doubtful_used)
      end
      return true, IN_DOUBT
    end
    return false, 0
  end

  local function grant_windows(key, arg, look, twin, hold)
    local ask_algorithm, ask_quota, ask_length, ask_grain, ask_offset, ttl, ask_version, waiting, cost, deadline, keep, nodes,
      leased, doubtful_used, own, earns, owing = struct.unpack('>I8I8I8I8I8I8I8I8I8I8I8I8I8I8I8I8I8', arg, 2)
    local changed, begun = open(key, ask_version, ask_algorithm, ask_quota, ask_length, ask_grain, ask_offset, leased, doubtful_used, owing, twin)
    if changed == nil then
      return 1, 0, 0, 0, 0, 0, 0
    end
    -- Grant to waiting requests first.
    local largest = quota
    if own > 0 then
      quota = math.min(quota, own)
    end
    local granted, kept, not_before = math.min(waiting, quotient(room(deadline), cost)), 0, 0
    local short, term = granted < waiting or not look and waiting == 0 and keep == 0 and room(deadline) < cost, 0
    if look then
      granted = 0
    end
    if granted > 0 then
      local name = reserved_name(arg)
      if name then
        reserve(key, name, granted, last, last + deadline, cost, leaves(start_of(last + deadline)))
      end
      lend(granted * cost, deadline)
      if deadline > 0 then
        term = term_of(last + deadline)
      end
    end
    -- Then grant tokens to keep.
    if not look and not short and algorithm ~= COUNTER then
      kept = keep_share(keep, nodes, room(ttl), earns, cost)
      if kept > 0 then
        lend(kept, ttl)
        term = term_of(last + ttl)
      end
    end
    -- Compute the wait, and store the bucket if it has changed.
    if short then
      not_before = cost > quota and NEVER or math.max(1, ready(cost, deadline) - now)
    end
    local level = math.max(0, available(last))
    quota = largest
    if changed or granted > 0 or kept > 0 then
      save(key, encode(), max(forgettable(), now + hold))
    end
    local state = 0
    if leased > 0 and tells(granted, not_before) then
      local at = lost_at(key)
      state = at > 0 and now < leaves(start_of(leaves(start_of(at + leased)) + leased)) and IN_DOUBT or 0
    end
    return state, granted, kept, not_before, level, full_after(), term, begun
  end

  local function charge_windows(key, arg, granted, kept, draft, begins)
    local hold, ask_algorithm, ask_quota, ask_length, ask_grain, ask_offset, ask_version, leased, doubtful_used, longest, cost,
      deadline, ttl, twin_reach, owing = struct.unpack('>I8I8I8I8I8I8I8I8I8I8I8I8I8I8I8', arg, 2)
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
      set_back()
      if version > ask_version then
        advance(now)
      else
        if algorithm ~= ask_algorithm or quota ~= ask_quota or length ~= ask_length or grain ~= ask_grain or offset ~= ask_offset then
          convert(now, ask_algorithm, ask_quota, ask_length, ask_grain, ask_offset)
        else
          advance(now)
        end
        version = ask_version
      end
    else
      version, last, starts, counts, marks, reach, kept_until = ask_version, now, {}, {}, 0, 0, 0
      algorithm, quota, length, grain, offset = ask_algorithm, ask_quota, ask_length, ask_grain, ask_offset
      since, released, stayed = owing ~= 0 and now or 0, 0, 0
      local lost = not raw and lost_at(key) or 0
      local doubtful = raw or lost > 0 and now < leaves(start_of(lost + leased))
      if begins == 0 and not doubtful then
        return
      elseif doubtful and doubtful_used > 0 then
        add(now, doubtful_used)
      end
    end
    -- Charge the grant.
    if granted > 0 then
      lend(granted * cost, deadline)
    end
    if kept > 0 then
      lend(kept, math.min(ttl, longest))
    end
    keep_for(twin_reach)
    saturate()
    advance(last)
    save(key, encode(), max(forgettable(), now + hold))
  end

  local function settle_windows(key, arg)
    local nth, actual, name = struct.unpack('>I8I8c8', arg, 2)
    local from, at, taken = take_reservation(key, name, nth)
    if not from then
      return false
    end
    -- Counts n more tokens at an instant.
    local function grow(when, n)
      add(when, n)
      if marks > MAX_MARKS then
        counts[marks] = counts[marks] + counts[marks - 1]
        starts[marks - 1], counts[marks - 1] = starts[marks], counts[marks]
        marks = marks - 1
      end
      local most = most_counted()
      for i = 1, marks do
        counts[i] = min(counts[i], most)
      end
    end
    -- Takes tokens off the mark of an instant, and off earlier marks if the mark has moved, as
    -- quota.Windows.Settle does.
    local function shrink(start, left)
      local given = from < released and start_of(released - 1)
      local rest = 0
      for i = 1, marks do -- From the latest mark.
        local k = marks + 1 - i
        if starts[k] == start or starts[k] < start and algorithm ~= FIXED then
          local n = min(counts[k], left)
          if given and starts[k] == given then
            n = min(n, stayed)
            stayed = stayed - n
          elseif given and starts[k] > given and starts[k] ~= start then
            n = 0
          end
          counts[k], left = counts[k] - n, left - n
        end
      end
      for i = 1, marks do
        if counts[i] > 0 then
          rest = rest + 1
          starts[rest], counts[rest] = starts[i], counts[i]
        end
      end
      marks = rest
      return left
    end
    -- Settles the count at an instant. Returns the tokens that went back, below 0 if it took more.
    local function settle_at(when)
      local start, back = start_of(when), taken - actual
      if leaves(start) <= last then
        return 0
      elseif back < 0 then
        grow(when, -back)
        return back
      end
      return back - shrink(start, back)
    end
    -- Settles the reservation in one ledger.
    local function settle(of)
      local raw = redis.call('GET', of)
      local fine, good = false, false
      if raw then
        fine, good = pcall(decode, raw)
      end
      if not (fine and good) then
        return 0
      end
      advance(now)
      if actual < taken and (from > last or from < since) then
        return 0
      end
      local back = settle_at(at)
      if algorithm == FIXED and start_of(from) ~= start_of(at) then -- It counts in both windows.
        local current = settle_at(from)
        if current ~= 0 then
          back = current
        end
      end
      if back ~= 0 then
        save(of, encode(), max(forgettable(), now))
      end
      return back
    end
    local back = 0
    if actual ~= taken then
      back = settle(key)
      settle(key .. ':draft')
    end
    return true, in_parts(back), in_parts(-back)
  end

  -- Takes up to n tokens off the marks that begin from first to till, the earliest first. Returns
  -- the number of tokens taken.
  local function shrink(first, till, n)
    local taken, kept = 0, 0
    for i = 1, marks do
      local part = 0
      if starts[i] >= first and starts[i] <= till then
        part = min(counts[i], n - taken)
      end
      taken = taken + part
      if counts[i] > part then
        kept = kept + 1
        starts[kept], counts[kept] = starts[i], counts[i] - part
      end
    end
    marks = kept
    return taken
  end

  -- Takes up to n tokens back that were lent until an instant: quota.Windows.TakeBack in Go.
  local function unlend(till, n)
    local start, current = start_of(till), start_of(last)
    if algorithm == COUNTER or leaves(start) <= last then
      return 0
    end
    if algorithm ~= FIXED then
      return shrink(start, math.huge, n)
    end
    local at_start, at_current = 0, 0
    for i = 1, marks do
      if starts[i] == start then
        at_start = counts[i]
      end
      if starts[i] == current then
        at_current = counts[i]
      end
    end
    n = min(n, at_start, at_current)
    shrink(start, start, n)
    if start ~= current then
      shrink(current, current, n)
    end
    return n
  end

  -- Lets up to n used tokens count now that were lent until an instant: quota.Windows.CountNow in Go.
  local function bring(till, n)
    local start = start_of(till)
    if algorithm == COUNTER or start <= start_of(last) then
      return 0
    elseif algorithm == FIXED then
      return shrink(start, start, n)
    end
    local moved = shrink(start, math.huge, n)
    if moved > 0 then
      add(last, moved)
    end
    return moved
  end

  local function take_back_windows(key, arg)
    local term, unused, used, name = struct.unpack('>I8I8I8c8', arg, 2)
    if end_of_term(term, now) + LATE <= now or not first_time(key, name, end_of_term(term, now) + LATE) then
      return 0
    end
    -- Takes tokens back in one ledger. Returns their number.
    local function take(of)
      local raw = redis.pcall('GET', of)
      local fine, good = pcall(decode, raw)
      if not (raw and fine and good) then
        return 0
      end
      advance(now)
      local till = end_of_term(term, last)
      if last >= till + LATE then
        return 0
      end
      local taken = unlend(till, unused)
      if bring(till, used) + taken > 0 then
        save_again(of, encode())
      end
      return taken
    end
    return max(take(key), take(key .. ':draft'))
  end

  return grant_windows, charge_windows, settle_windows, take_back_windows
end
