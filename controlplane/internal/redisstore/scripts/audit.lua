-- Keeps an audit entry about the change that a script makes. Part of every script that people's
-- changes are made by.
--
-- list   sorted set of entries by time in microseconds, each with that time before it; beside what is changed, by its tag
-- entry  JSON, an object that is not empty     before  JSON of what is replaced, or nothing     kept  how many entries are kept
local function record(list, entry, before, kept)
  local time = redis.call('TIME')
  local at = time[1] * 1000000 + time[2]
  local newest = redis.call('ZRANGE', list, -1, -1, 'WITHSCORES')[2]
  if newest and tonumber(newest) >= at then
    at = newest + 1
  end
  if before then
    entry = '{"before":' .. before .. ',' .. string.sub(entry, 2)
  end
  local stamp = string.format('%.0f', at)
  redis.call('ZADD', list, stamp, stamp .. ' ' .. entry)
  redis.call('ZREMRANGEBYRANK', list, 0, -1 - kept)
end
