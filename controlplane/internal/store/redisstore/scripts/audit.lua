-- Stores an audit entry about the change that a script makes. Part of every script that makes
-- changes with an author.
--
-- list    sorted set of entries by time in microseconds, each entry with this time in front; it has the same tag as the changed key
-- entry   JSON, an object that is not empty
-- before  JSON of the replaced value, or nothing
-- kept    number of entries to keep
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
