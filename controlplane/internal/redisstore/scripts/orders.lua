-- Replaces what operators have ordered beside the policy set, if it is as expected.
--
-- KEYS[1]  hash: rev, value     KEYS[2]  audit list
-- ARGV     the revision that is replaced, 0 for none; the new revision, the new value, how many audit entries are kept, and each entry
-- returns  1 if it was stored, 0 if something else is there
if (redis.call('HGET', KEYS[1], 'rev') or '0') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'rev', ARGV[2], 'value', ARGV[3])
for i = 5, #ARGV do
  record(KEYS[2], ARGV[i], nil, ARGV[4])
end
return 1
