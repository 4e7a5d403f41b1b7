-- Appends a version of the policy set if the current one is the expected.
--
-- KEYS[1]  number of the current version     KEYS[2]  hash number -> description     KEYS[3]  hash number -> document
-- KEYS[4]  audit list
-- ARGV     expected number, new number, description, document, how many versions are kept, audit entry, how many of those are
--          kept
-- returns  1, or 0 if the current version is another
local current = tonumber(redis.call('GET', KEYS[1]) or '0')
local number = tonumber(ARGV[2])
if current ~= tonumber(ARGV[1]) or number <= current then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[4])
for _, old in ipairs(redis.call('HKEYS', KEYS[2])) do
  if tonumber(old) <= number - tonumber(ARGV[5]) then
    redis.call('HDEL', KEYS[2], old)
    redis.call('HDEL', KEYS[3], old)
  end
end
record(KEYS[4], ARGV[6], nil, ARGV[7])
return 1
