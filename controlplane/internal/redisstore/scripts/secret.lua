-- Returns the deployment's secret, and makes the candidate it if there is none.
--
-- KEYS[1]  the secret     KEYS[2]  when the store was found to have lost its state, in microseconds
-- ARGV     candidate; 1 if the caller has seen a secret here before, so that its absence is a loss
-- returns  the secret, when state was lost ('0' for never)
local secret = redis.call('GET', KEYS[1])
if not secret then
  secret = ARGV[1]
  redis.call('SET', KEYS[1], secret)
  if ARGV[2] == '1' then
    local time = redis.call('TIME')
    redis.call('SET', KEYS[2], string.format('%.0f', time[1] * 1000000 + time[2]))
  end
end
return {secret, redis.call('GET', KEYS[2]) or '0'}
