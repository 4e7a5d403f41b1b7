-- Records the process that keeps the buckets of a tag. If another process kept them before, some of
-- their state may be lost.
--
-- KEYS[1]  run id of the process     KEYS[2]  time of the last loss of state, in microseconds
-- ARGV     run id, run ids of all processes that keep buckets now
-- returns  1 if state may have been lost
local before = redis.call('GET', KEYS[1])
if before == ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1])
if not before or string.find(ARGV[2], before, 1, true) then
  return 0
end
local time = redis.call('TIME')
redis.call('SET', KEYS[2], string.format('%.0f', time[1] * 1000000 + time[2]))
return 1
