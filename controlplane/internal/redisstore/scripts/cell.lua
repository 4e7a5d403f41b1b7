-- Reads a value that several writers change, or changes it if no other writer has.
--
-- KEYS[1]  hash: rev, value
-- ARGV     nothing; or the revision that the writer has read, and the new value
-- returns  value ('' for none), revision, time in microseconds; or 1 if the value was stored, 0 if not
local held = redis.call('HMGET', KEYS[1], 'rev', 'value')
if #ARGV == 0 then
  local time = redis.call('TIME')
  return {held[2] or '', held[1] or '0', string.format('%.0f', time[1] * 1000000 + time[2])}
end
if (held[1] or '0') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'rev', string.format('%.0f', ARGV[1] + 1), 'value', ARGV[2])
return 1
