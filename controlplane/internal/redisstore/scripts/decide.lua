-- Stores refusals that nodes reported.
--
-- KEYS[1]  sorted set of refusals by when they were reported, in microseconds, each with that time before it
-- ARGV     how many are kept, for how many milliseconds, then refusals, JSON
-- returns  nothing
local time = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', time[1] * 1000000 + time[2] - ARGV[2] * 1000))
for i = 3, #ARGV do
  record(KEYS[1], ARGV[i], nil, ARGV[1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
