-- Replaces the state of a bucket if it has not been used meanwhile.
--
-- KEYS[1]  state of the bucket     KEYS[2]  audit list beside it
-- ARGV     the state that is replaced, or nothing; the new state, its expiry in Unix milliseconds, audit entry, how many of those are kept
-- returns  1 if it was stored, 0 if the state is another
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PXAT', ARGV[3])
record(KEYS[2], ARGV[4], nil, ARGV[5])
return 1
