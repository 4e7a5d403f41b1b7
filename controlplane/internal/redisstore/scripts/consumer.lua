-- Writes or forgets one consumer if it is as expected, and notes the change.
--
-- KEYS[1]  hash consumer -> revision and record     KEYS[2]  hash: rev, the last revision; floor, after which no change is missing;
--          first, the revision that the first change had     KEYS[3]  sorted set of changed consumers by revision
-- KEYS[4]  audit list
-- ARGV     consumer, expected revision or *, record or nothing to forget it, how many changes are kept, audit entry, how many of
--          those are kept
-- returns  the revision, '0' if the consumer is another, '-1' if there is nothing to forget
local held = redis.call('HGET', KEYS[1], ARGV[1])
if ARGV[2] ~= '*' and ARGV[2] ~= (held and string.match(held, '^%d+') or '0') then
  return '0'
end
if ARGV[3] == '' and not held then
  return '-1'
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
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], revision .. ' ' .. ARGV[3])
end
redis.call('ZADD', KEYS[3], revision, ARGV[1])
local over = redis.call('ZCARD', KEYS[3]) - tonumber(ARGV[4])
if over > 0 then
  redis.call('HSET', KEYS[2], 'floor', redis.call('ZRANGE', KEYS[3], over - 1, over - 1, 'WITHSCORES')[2])
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, over - 1)
end
record(KEYS[4], ARGV[5], held and string.match(held, ' (.*)'), ARGV[6])
return revision
