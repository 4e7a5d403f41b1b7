-- Replaces one ledger of a bucket if neither ledger has changed since it was read.
--
-- KEYS[1]  the ledger     KEYS[2]  the bucket's other ledger     KEYS[3]  audit list of the tag
-- ARGV     both ledgers as they were read, '' for none; the new ledger, its expiry in Unix milliseconds,
--          audit entry or '', the number of audit entries to keep
-- returns  1 if the ledger was stored, 0 if one of both has changed
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] or (redis.call('GET', KEYS[2]) or '') ~= ARGV[2] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[3], 'PXAT', ARGV[4])
if ARGV[5] ~= '' then
  record(KEYS[3], ARGV[5], nil, ARGV[6])
end
return 1
