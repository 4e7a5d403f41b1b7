-- Counts the looks of all control planes at a server. A server that goes back to an older state
-- goes back to a smaller number.
--
-- KEYS[1]  the number     KEYS[2]  the marker of lost state beside it
-- returns  the number, and 1 if the marker is there
local n = tonumber(redis.call('GET', KEYS[1]) or '') or 0
redis.call('SET', KEYS[1], string.format('%.0f', n + 1))
return {n + 1, redis.call('GET', KEYS[2]) and 1 or 0}
