-- Counts the nodes that were seen lately.
--
-- KEYS[1]  sorted set of nodes by when they were seen, in milliseconds
-- ARGV     how many milliseconds ago still counts
-- returns  the number
local time = redis.call('TIME')
local since = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[1]
return redis.call('ZCOUNT', KEYS[1], string.format('(%.0f', since), '+inf')
