-- Returns what is known of consumers, as of one moment.
--
-- KEYS     as for consumer.lua
-- ARGV     consumers
-- returns  rev, turn, and for each consumer: revision and record, or nothing
local state = redis.call('HMGET', KEYS[2], 'rev', 'turn')
local out = {state[1] or '0', state[2] or '0'}
for i, value in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV))) do
  out[2 + i] = value or ''
end
return out
