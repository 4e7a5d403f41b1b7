-- Marks when permits were lost, see permits.lua. A later mark stays, unless a clock that was set
-- back since has made it.
--
-- KEYS[1]  the marker
-- ARGV     the time of the loss in microseconds, by how much longer than usual permits are in doubt,
--          and the longest doubt
-- returns  0
local at = tonumber(ARGV[1])
local noted = tonumber(redis.call('GET', KEYS[1]) or '') or 0
if noted <= at + ARGV[2] or noted > at + ARGV[3] then
  redis.call('SET', KEYS[1], string.format('%.0f', at + ARGV[2]))
end
return 0
