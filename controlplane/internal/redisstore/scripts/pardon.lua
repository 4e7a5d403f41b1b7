-- Pardons callers, or all of them.
--
-- KEYS     as for offer.lua
-- ARGV     how many audit entries are kept, an entry or nothing, 1 for all; then callers, unless it is for all
-- returns  how many had a penalty that is remembered
local state = redis.call('HMGET', KEYS[4], 'rev', 'first')
local time = redis.call('TIME')
local number = math.max(tonumber(state[1] or '0'), time[1] * 1000 + math.floor(time[2] / 1000) - 1)
local pardoned = 0
if ARGV[3] == '1' then
  pardoned = redis.call('ZCARD', KEYS[2])
  -- The commands are those that a user of the store has had the right to since before there were penalties.
  local callers = redis.call('HKEYS', KEYS[1])
  for i = 1, #callers, 1000 do
    redis.call('HDEL', KEYS[1], unpack(callers, i, math.min(i + 999, #callers)))
  end
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -1)
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -1)
  number = number + 1
  redis.call('HSET', KEYS[4], 'cleared', string.format('%.0f', number))
else
  for i = 4, #ARGV do
    local held = redis.call('HGET', KEYS[1], ARGV[i])
    local level, forgotten, facts
    if held then
      level, forgotten, facts = string.match(held, '^%d+ (%d+) %d+ (%d+) (.*)$')
    end
    if held and level ~= '0' then
      number = number + 1
      pardoned = pardoned + 1
      local revision = string.format('%.0f', number)
      redis.call('HSET', KEYS[1], ARGV[i], table.concat({revision, '0', '0', forgotten, facts}, ' '))
      redis.call('ZADD', KEYS[2], revision, ARGV[i])
    end
  end
end
if pardoned > 0 or ARGV[3] == '1' then
  local revision = string.format('%.0f', number)
  redis.call('HSET', KEYS[4], 'rev', revision, 'first', state[2] or revision)
  if ARGV[2] ~= '' then
    record(KEYS[5], ARGV[2], nil, ARGV[1])
  end
end
return pardoned
