-- Notes when permits were lost, see permits.lua. A later time that is noted already stays, unless it
-- is of a clock that was set back since.
--
-- KEYS[1]  the marker
-- ARGV     when they were lost in microseconds, for how much longer than usual they are in doubt,
--          and the longest doubt
-- returns  nothing that counts
local at = tonumber(ARGV[1])
local noted = tonumber(redis.call('GET', KEYS[1]) or '') or 0
if noted <= at + ARGV[2] or noted > at + ARGV[3] then
  redis.call('SET', KEYS[1], string.format('%.0f', at + ARGV[2]))
end
return 0
