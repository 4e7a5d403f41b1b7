-- Tells which versions of the policy set are in force.
--
-- KEYS[1]  number of the current version     KEYS[2]  hash: rev, value, newest; see append.lua
-- returns  number, revision, rollout ('' for none), highest number that was ever given
local held = redis.call('HMGET', KEYS[2], 'rev', 'value', 'newest')
return {redis.call('GET', KEYS[1]) or '0', held[1] or '0', held[2] or '', held[3] or '0'}
