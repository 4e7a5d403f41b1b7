-- Returns the latest changes of consumers.
--
-- KEYS     as for consumer.lua
-- returns  rev, floor, first, and for each change: consumer, revision, revision and record or nothing
local state = redis.call('HMGET', KEYS[2], 'rev', 'floor', 'first')
local out = {state[1] or '0', state[2] or '0', state[3] or '0'}
local changes = redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')
for i = 1, #changes, 2 do
  out[#out + 1] = changes[i]
  out[#out + 1] = changes[i + 1]
  out[#out + 1] = redis.call('HGET', KEYS[1], changes[i]) or ''
end
return out
