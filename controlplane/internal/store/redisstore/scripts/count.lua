-- Counts the nodes that were seen lately.
--
-- KEYS[1]  sorted set of nodes by the time they were last seen, in milliseconds
-- ARGV     the longest time since then, in milliseconds
-- returns  the number
local time = redis.call('TIME')
local since = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[1]
return redis.call('ZCOUNT', KEYS[1], string.format('(%.0f', since), '+inf')
