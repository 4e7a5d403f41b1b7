-- Changes records of a topic if all are as expected, or changes none. After audit.lua.
--
-- KEYS[1]  hash key -> revision, a space, value
-- KEYS[2]  hash: first and rev, the revisions of the first and the last commit; cleared, the revision of the last commit that
--          cleared the topic; floor, the revision since which the log is complete; index_rev, see docs.State.IndexRevision
-- KEYS[3]  the log: sorted set of keys by the revision of their last change     KEYS[4]  audit list
-- KEYS[5]  sorted set of keys by the first score     KEYS[6...]  the same for each other score
-- ARGV     the number of changes to keep; 1 if the log is whole; 1 if records expire; 1 to drop all; the expected cleared, or *;
--          an index_rev that was seen; audit entry or ''; 1 if the entry gets the old value of the first record; the number of
--          audit entries to keep; then for each record: key, expected revision or *, value or '' to delete it, its scores, 0 for none
-- returns  the revision; 'conflict' if something is not as expected, 'none' if there is nothing to delete, 'full' if there is no room
local first, each, scores = 10, 3 + #KEYS - 4, #KEYS - 4
local state = redis.call('HMGET', KEYS[2], 'rev', 'cleared', 'first', 'index_rev')
if ARGV[5] ~= '*' and ARGV[5] ~= (state[2] or '0') then
  return 'conflict'
end
-- Check that every record is as expected.
local held = {}
for i = first, #ARGV, each do
  held[i] = redis.call('HGET', KEYS[1], ARGV[i])
  if ARGV[i + 1] ~= '*' and ARGV[i + 1] ~= (held[i] and string.match(held[i], '^%d+') or '0') then
    return 'conflict'
  end
  if ARGV[i + 2] == '' and not held[i] then
    return 'none'
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Removes keys from a hash or a sorted set.
local function remove(command, from, keys)
  for i = 1, #keys, 1000 do
    redis.call(command, from, unpack(keys, i, math.min(i + 999, #keys)))
  end
end

-- Drop all records, or some expired ones, from the hash, the log and the indexes.
local old = {}
if ARGV[4] == '1' then
  remove('HDEL', KEYS[1], redis.call('HKEYS', KEYS[1]))
elseif ARGV[3] == '1' then
  old = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', string.format('%.0f', now), 'LIMIT', 0, 500)
  remove('HDEL', KEYS[1], old)
end
for k = 3, #KEYS do
  if k ~= 4 and ARGV[4] == '1' then
    redis.call('ZREMRANGEBYRANK', KEYS[k], 0, -1)
  elseif k ~= 4 then
    remove('ZREM', KEYS[k], old)
  end
end
-- Count new records only now: a record that has just been dropped is new again.
local kept, new = tonumber(ARGV[1]), 0
for i = first, ARGV[2] == '1' and #ARGV or 0, each do
  new = new + (redis.call('HGET', KEYS[1], ARGV[i]) and 0 or 1)
end
if new > 0 and redis.call('ZCARD', KEYS[3]) + new > kept then
  return 'full'
end
-- Without a change of a record only the audit entry is stored.
if first > #ARGV and ARGV[4] ~= '1' then
  if ARGV[7] ~= '' then
    record(KEYS[4], ARGV[7], nil, ARGV[9])
  end
  return state[1] or '0'
end
-- A revision is at least the time. So after a loss of state the revisions are above all that nodes
-- have seen.
local before = math.max(tonumber(state[1] or '0'), now - 1)
local number, revision, touched = before, nil, false
for i = first, #ARGV, each do
  if number == before or ARGV[2] == '1' then
    number = number + 1
    revision = string.format('%.0f', number)
  end
  if ARGV[i + 2] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], revision .. ' ' .. ARGV[i + 2])
  end
  redis.call('ZADD', KEYS[3], revision, ARGV[i])
  for n = 1, scores do
    local score, was = ARGV[i + 2 + n], redis.call('ZREM', KEYS[4 + n], ARGV[i]) == 1
    if score ~= '0' then
      redis.call('ZADD', KEYS[4 + n], score, ARGV[i])
    end
    touched = touched or n == 1 and (was or score ~= '0')
  end
end
revision = revision or string.format('%.0f', before + 1)
redis.call('HSET', KEYS[2], 'rev', revision)
if not state[3] then
  redis.call('HSET', KEYS[2], 'floor', string.format('%.0f', before), 'first', revision)
end
if ARGV[4] == '1' then
  redis.call('HSET', KEYS[2], 'cleared', string.format('%.0f', before + 1))
end
if touched then
  local index_rev = math.max(tonumber(state[4] or '0'), tonumber(ARGV[6])) + 1
  redis.call('HSET', KEYS[2], 'index_rev', string.format('%.0f', index_rev))
end
-- Shorten the log, unless it is whole, and move its floor.
local over = ARGV[2] == '1' and 0 or redis.call('ZCARD', KEYS[3]) - kept
if over > 0 then
  redis.call('HSET', KEYS[2], 'floor', redis.call('ZRANGE', KEYS[3], over - 1, over - 1, 'WITHSCORES')[2])
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, over - 1)
end
if ARGV[7] ~= '' then
  record(KEYS[4], ARGV[7], ARGV[8] == '1' and held[first] and string.match(held[first], ' (.*)'), ARGV[9])
end
return revision
