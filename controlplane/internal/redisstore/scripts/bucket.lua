-- Reads the state of a bucket. clock.lua before it sets now, in microseconds.
--
-- KEYS[1]  state of the bucket     KEYS[2]  the marker of lost state beside it
-- returns  the state or nothing, when the state beside it was last lost or nothing, and now
return {redis.call('GET', KEYS[1]) or '', redis.call('GET', KEYS[2]) or '', string.format('%.0f', now)}
