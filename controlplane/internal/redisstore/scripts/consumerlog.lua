-- Returns what has changed of consumers after a revision.
--
-- KEYS     as for consumer.lua
-- ARGV     revision
-- returns  rev, floor, first, turn, how many consumers are special; for each change: consumer, revision, revision and record or
--          nothing
local state = redis.call('HMGET', KEYS[2], 'rev', 'floor', 'first', 'turn')
local now = redis.call('TIME')[1] * 1000
local out = {state[1] or '0', state[2] or '0', state[3] or '0', state[4] or '0', tostring(redis.call('ZCOUNT', KEYS[5], now, '+inf'))}
local changes = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. ARGV[1], '+inf', 'WITHSCORES')
for i = 1, #changes, 2 do
  out[#out + 1] = changes[i]
  out[#out + 1] = changes[i + 1]
  out[#out + 1] = redis.call('HGET', KEYS[1], changes[i]) or ''
end
return out
