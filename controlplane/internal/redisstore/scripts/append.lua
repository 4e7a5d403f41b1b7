-- Appends a version of the policy set for all nodes, or takes a step of a rollout, if what is in
-- force is what is expected.
--
-- KEYS[1]  number of the current version     KEYS[2]  hash number -> description     KEYS[3]  hash number -> document
-- KEYS[4]  audit list     KEYS[5]  hash about rollouts: rev, which grows with each step; value, that under way as JSON, or '';
--          newest, the highest number that was ever given
-- ARGV     expected number; expected revision, '' if no rollout may be under way; number afterwards; revision and rollout afterwards;
--          number that is kept in any case; how many versions are kept; audit entry, how many of those are kept; then number,
--          description and document of each version, the document '' where it stays
-- returns  1, or 0 if something else is in force
local current = tonumber(redis.call('GET', KEYS[1]) or '0')
local held = redis.call('HMGET', KEYS[5], 'rev', 'value', 'newest')
local newest = math.max(tonumber(held[3] or '0'), current)
if current ~= tonumber(ARGV[1]) then
  return 0
end
if ARGV[2] == '' then
  -- A rollout over another version was ended by a control plane that knows of none.
  local base = held[2] and string.match(held[2], '"base":(%d+)')
  if base and tonumber(base) == current then
    return 0
  end
elseif tonumber(ARGV[2]) ~= tonumber(held[1] or '0') then
  return 0
end
for i = 10, #ARGV, 3 do
  local number = tonumber(ARGV[i])
  if ARGV[i + 2] ~= '' then
    if number <= newest then
      return 0
    end
    newest = number
  end
end
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
for _, old in ipairs(redis.call('HKEYS', KEYS[2])) do
  if tonumber(old) <= newest - tonumber(ARGV[7]) and old ~= ARGV[3] and old ~= ARGV[6] then
    redis.call('HDEL', KEYS[2], old)
    redis.call('HDEL', KEYS[3], old)
  end
end
record(KEYS[4], ARGV[8], nil, ARGV[9])
return 1
