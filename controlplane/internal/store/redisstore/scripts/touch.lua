-- Records that a node was seen now, and forgets nodes that were not seen for long.
--
-- KEYS[1]  hash node -> description     KEYS[2]  sorted set of nodes by the time they were last seen, in milliseconds
-- KEYS[3]  hash node -> report
-- ARGV     node, description, the milliseconds after which a node is forgotten, the number of nodes to keep
-- returns  nothing
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], string.format('%.0f', now), ARGV[1])
local forgotten = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now - ARGV[3]), 'LIMIT', 0, 100)
if redis.call('ZCARD', KEYS[2]) - #forgotten > tonumber(ARGV[4]) then
  table.insert(forgotten, redis.call('ZRANGE', KEYS[2], #forgotten, #forgotten)[1])
end
for _, node in ipairs(forgotten) do
  redis.call('HDEL', KEYS[1], node)
  redis.call('HDEL', KEYS[3], node)
  redis.call('ZREM', KEYS[2], node)
end
