-- Writes or forgets consumers if they are as expected, all or none, and notes the changes.
--
-- KEYS[1]  hash consumer -> revision and record     KEYS[2]  hash: rev, the last revision; turn, the revision of exceptions;
--          floor, after which no change is missing; first, the revision that the first change had
-- KEYS[3]  sorted set of changed consumers by revision     KEYS[4]  audit list
-- KEYS[5]  sorted set of special consumers, by when they are special no more     KEYS[6]  the same of the banned
-- ARGV     how many changes are kept, audit entry, how many of those are kept, a revision of exceptions that has been seen;
--          then for each consumer: its hash, its expected revision or *, record or nothing to forget it, when it is special and banned no more, 0 if it is
--          not
-- returns  the revision, the same of all, '0' if a consumer is another, '-1' if there is nothing to forget
local held = {}
for i = 5, #ARGV, 5 do
  held[i] = redis.call('HGET', KEYS[1], ARGV[i])
  if ARGV[i + 1] ~= '*' and ARGV[i + 1] ~= (held[i] and string.match(held[i], '^%d+') or '0') then
    return '0'
  end
  if ARGV[i + 2] == '' and not held[i] then
    return '-1'
  end
end
local time = redis.call('TIME')
local last = tonumber(redis.call('HGET', KEYS[2], 'rev') or '0')
-- At least the time: a store that has lost its state goes on above what nodes have seen.
local number = math.max(last + 1, time[1] * 1000 + math.floor(time[2] / 1000))
local revision = string.format('%.0f', number)
if last == 0 then
  redis.call('HSET', KEYS[2], 'floor', string.format('%.0f', number - 1), 'first', revision)
end
redis.call('HSET', KEYS[2], 'rev', revision)
local special = false

-- Keeps until when a consumer is listed, and returns whether it was or is.
local function list(key, consumer, ends)
  local was = redis.call('ZREM', key, consumer) == 1
  if ends ~= '0' then
    redis.call('ZADD', key, ends, consumer)
  end
  return was or ends ~= '0'
end

for i = 5, #ARGV, 5 do
  if ARGV[i + 2] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], revision .. ' ' .. ARGV[i + 2])
  end
  redis.call('ZADD', KEYS[3], revision, ARGV[i])
  special = list(KEYS[5], ARGV[i], ARGV[i + 3]) or special
  list(KEYS[6], ARGV[i], ARGV[i + 4])
end
if special then
  local turn = math.max(tonumber(redis.call('HGET', KEYS[2], 'turn') or '0'), tonumber(ARGV[4])) + 1
  redis.call('HSET', KEYS[2], 'turn', string.format('%.0f', turn))
end
local over = redis.call('ZCARD', KEYS[3]) - tonumber(ARGV[1])
if over > 0 then
  redis.call('HSET', KEYS[2], 'floor', redis.call('ZRANGE', KEYS[3], over - 1, over - 1, 'WITHSCORES')[2])
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, over - 1)
end
record(KEYS[4], ARGV[2], #ARGV < 10 and held[5] and string.match(held[5], ' (.*)'), ARGV[3])
return revision
