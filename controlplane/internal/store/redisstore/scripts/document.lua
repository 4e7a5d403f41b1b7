-- Reads a document, or replaces it if it has the expected revision. After audit.lua.
--
-- KEYS[1]  hash: rev, value     KEYS[2]  audit list
-- ARGV     to read: the revision whose value the caller knows. To replace: the expected revision, 0 for none, the new revision,
--          the new value, the number of audit entries to keep, and each entry
-- returns  to read: revision, value, time in microseconds. To replace: 1 if the document was stored, 0 if the revision is another
if #ARGV == 1 then
  local revision = redis.call('HGET', KEYS[1], 'rev') or '0'
  local value = revision ~= ARGV[1] and redis.call('HGET', KEYS[1], 'value')
  local time = redis.call('TIME')
  return {revision, value or '', string.format('%.0f', time[1] * 1000000 + time[2])}
end
if (redis.call('HGET', KEYS[1], 'rev') or '0') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'rev', ARGV[2], 'value', ARGV[3])
for i = 5, #ARGV do
  record(KEYS[2], ARGV[i], nil, ARGV[4])
end
return 1
