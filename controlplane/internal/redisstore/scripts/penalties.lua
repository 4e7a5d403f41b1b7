-- Returns penalties that changed after a revision, the earliest first, as of one moment.
--
-- KEYS     as for offer.lua
-- ARGV     revision, how many at most
-- returns  first, rev, cleared, and for each: caller, what is known
local state = redis.call('HMGET', KEYS[4], 'first', 'rev', 'cleared')
local out = {state[1] or '0', state[2] or '0', state[3] or '0'}
local callers = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. ARGV[1], '+inf', 'LIMIT', 0, ARGV[2])
for _, caller in ipairs(callers) do
  out[#out + 1] = caller
  out[#out + 1] = redis.call('HGET', KEYS[1], caller) or ''
end
return out
