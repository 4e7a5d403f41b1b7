-- Reads records of a topic, as of one moment.
--
-- KEYS     as for commit.lua
-- ARGV     'since', a revision, the maximum number of changes; or 'of' and the keys of records
-- returns  first, rev, cleared, floor, index_rev, the number of changes in the log, 1 if a first score is in the future; then, with
--          'since', for each change: key, its revision, and the record; with 'of' for each record: its revision, a space, and its
--          value, or ''
local now = redis.call('TIME')
local state = redis.call('HMGET', KEYS[2], 'first', 'rev', 'cleared', 'floor', 'index_rev')
local out = {}
for i = 1, 5 do
  out[i] = state[i] or '0'
end
out[6] = tostring(redis.call('ZCARD', KEYS[3]))
local ms = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
out[7] = redis.call('ZCOUNT', KEYS[5], ms, '+inf') > 0 and '1' or '0'
if ARGV[1] == 'of' then
  if #ARGV > 1 then
    for i, value in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV, 2))) do
      out[7 + i] = value or ''
    end
  end
  return out
end
local changes = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. ARGV[2], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
for i = 1, #changes, 2 do
  out[#out + 1] = changes[i]
  out[#out + 1] = changes[i + 1]
  out[#out + 1] = redis.call('HGET', KEYS[1], changes[i]) or ''
end
return out
