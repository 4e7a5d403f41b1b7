-- Stores a control plane's list of the heaviest callers, and drops lists that are old.
--
-- KEYS[1]  hash replica -> JSON     KEYS[2]  sorted set of replicas by when they stored it, in milliseconds
-- ARGV     replica, JSON, after how many milliseconds it is forgotten
-- returns  nothing
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], string.format('%.0f', now), ARGV[1])
for _, replica in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now - ARGV[3]))) do
  redis.call('HDEL', KEYS[1], replica)
  redis.call('ZREM', KEYS[2], replica)
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
