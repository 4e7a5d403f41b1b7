-- Checks that Redis still knows answered claims of permits, see permits.lua.
--
-- KEYS     permits of each claim's bucket
-- ARGV     for each claim its node and its sequence number
-- returns  '', or the time in microseconds if a claim is not known
for i, key in ipairs(KEYS) do
  local held = redis.call('HGET', key, ARGV[2 * i - 1])
  if not held or cmsgpack.unpack(held)[1] < tonumber(ARGV[2 * i]) then
    local time = redis.call('TIME')
    return string.format('%.0f', time[1] * 1000000 + time[2])
  end
end
return ''
