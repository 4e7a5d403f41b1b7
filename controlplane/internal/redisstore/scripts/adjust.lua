-- Replaces one ledger of a bucket if neither has been used meanwhile.
--
-- KEYS[1]  the ledger     KEYS[2]  the other one     KEYS[3]  audit list beside them
-- ARGV     what both were, or nothing each; the new ledger, its expiry in Unix milliseconds, audit entry or nothing, how many of those are kept
-- returns  1 if it was stored, 0 if one is another
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] or (redis.call('GET', KEYS[2]) or '') ~= ARGV[2] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[3], 'PXAT', ARGV[4])
if ARGV[5] ~= '' then
  record(KEYS[3], ARGV[5], nil, ARGV[6])
end
return 1
