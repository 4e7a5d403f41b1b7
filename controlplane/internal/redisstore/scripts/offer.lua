-- Takes penalties that replace what is known of their callers, and drops some that are forgotten.
--
-- KEYS[1]  hash caller -> revision, level, until, forgotten, facts     KEYS[2]  sorted set of callers by revision
-- KEYS[3]  sorted set of callers by when they are forgotten     KEYS[4]  hash: first, rev, cleared     KEYS[5]  audit list
-- ARGV     how many callers are kept, how many audit entries, an entry or nothing; then for each caller: its hash, the revision
--          that is known of it, level, until, forgotten, facts
-- returns  how many were taken, how many found no place
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local old = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now), 'LIMIT', 0, 500)
if #old > 0 then
  redis.call('HDEL', KEYS[1], unpack(old))
  redis.call('ZREM', KEYS[2], unpack(old))
  redis.call('ZREM', KEYS[3], unpack(old))
end
local state = redis.call('HMGET', KEYS[4], 'rev', 'cleared', 'first')
-- At least the time: a store that has lost its state goes on above what nodes have seen.
local number = math.max(tonumber(state[1] or '0'), now - 1)
local cleared = tonumber(state[2] or '0')
local room = tonumber(ARGV[1]) - redis.call('ZCARD', KEYS[2])
local taken, full = 0, 0
for i = 4, #ARGV, 6 do
  local key, known, level, till = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local held = redis.call('HGET', KEYS[1], key)
  local takes = known >= cleared
  if held and takes then
    local rev, was, ends = string.match(held, '^(%d+) (%d+) (%d+) ')
    takes = tonumber(was) > 0 or known >= tonumber(rev)
    takes = takes and (till > tonumber(ends) or till == tonumber(ends) and level > tonumber(was))
  end
  if takes and not held and room <= 0 then
    full = full + 1
  elseif takes then
    if not held then
      room = room - 1
    end
    number = number + 1
    taken = taken + 1
    local revision = string.format('%.0f', number)
    redis.call('HSET', KEYS[1], key, table.concat({revision, ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]}, ' '))
    redis.call('ZADD', KEYS[2], revision, key)
    redis.call('ZADD', KEYS[3], ARGV[i + 4], key)
  end
end
if taken > 0 then
  local revision = string.format('%.0f', number)
  redis.call('HSET', KEYS[4], 'rev', revision, 'first', state[3] or revision)
end
if ARGV[3] ~= '' then
  record(KEYS[5], ARGV[3], nil, ARGV[2])
end
return {taken, full}
