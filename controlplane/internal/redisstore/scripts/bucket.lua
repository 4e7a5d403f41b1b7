-- Reads the state of a bucket. clock.lua before it sets now, in microseconds.
--
-- KEYS[1]  state of the bucket     KEYS[2]  the marker of lost state beside it     KEYS[3] and on  further states
-- returns  the state or nothing, when the state beside it was last lost or nothing, now, and the further states
local all = {redis.call('GET', KEYS[1]) or '', redis.call('GET', KEYS[2]) or '', string.format('%.0f', now)}
for i = 3, #KEYS do
  all[i + 1] = redis.call('GET', KEYS[i]) or ''
end
return all
