-- Stores refusals that nodes reported.
--
-- KEYS[1]  sorted set of refusals by the time of their report, in microseconds, each refusal with this time in front
-- ARGV     the number of refusals to keep, the milliseconds to keep them, then refusals, JSON
-- returns  nothing
local time = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', time[1] * 1000000 + time[2] - ARGV[2] * 1000))
for i = 3, #ARGV do
  record(KEYS[1], ARGV[i], nil, ARGV[1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
