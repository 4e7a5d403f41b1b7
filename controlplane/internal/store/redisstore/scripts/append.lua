-- Appends a version of the policy set for all nodes, or takes a step of a rollout, if the store has
-- the expected version and revision.
--
-- KEYS[1]  number of the current version     KEYS[2]  hash number -> description     KEYS[3]  hash number -> document
-- KEYS[4]  audit list     KEYS[5]  hash of rollouts: rev, which grows with each step; value, the rollout under way as JSON, or '';
--          newest, the highest number that was ever given
-- ARGV     expected number; expected revision, '' if no rollout may be under way; new number; new revision and new rollout;
--          number of a version that is kept in any case; number of versions to keep; audit entry, number of audit entries to keep;
--          then number, description and document of each version, the document '' if it is unchanged
-- returns  1, or 0 if the store has another version or revision

-- Check the version, then the rollout.
local current = tonumber(redis.call('GET', KEYS[1]) or '0')
local held = redis.call('HMGET', KEYS[5], 'rev', 'value', 'newest')
local newest = math.max(tonumber(held[3] or '0'), current)
if current ~= tonumber(ARGV[1]) then
  return 0
end
if ARGV[2] == '' then
  -- If the rollout is over another version, a control plane that did not know it has ended it.
  local base = held[2] and string.match(held[2], '"base":(%d+)')
  if base and tonumber(base) == current then
    return 0
  end
elseif tonumber(ARGV[2]) ~= tonumber(held[1] or '0') then
  return 0
end
-- Check that the numbers of new documents are new.
for i = 10, #ARGV, 3 do
  local number = tonumber(ARGV[i])
  if ARGV[i + 2] ~= '' then
    if number <= newest then
      return 0
    end
    newest = number
  end
end
-- Store the versions and the rollout.
for i = 10, #ARGV, 3 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  if ARGV[i + 2] ~= '' then
    redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 2])
  end
end
if ARGV[3] ~= ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[3])
end
local last = string.format('%.0f', newest)
if ARGV[2] == '' then
  redis.call('HSET', KEYS[5], 'value', '', 'newest', last)
else
  redis.call('HSET', KEYS[5], 'rev', ARGV[4], 'value', ARGV[5], 'newest', last)
end
-- Delete the oldest versions.
for _, old in ipairs(redis.call('HKEYS', KEYS[2])) do
  if tonumber(old) <= newest - tonumber(ARGV[7]) and old ~= ARGV[3] and old ~= ARGV[6] then
    redis.call('HDEL', KEYS[2], old)
    redis.call('HDEL', KEYS[3], old)
  end
end
record(KEYS[4], ARGV[8], nil, ARGV[9])
return 1
