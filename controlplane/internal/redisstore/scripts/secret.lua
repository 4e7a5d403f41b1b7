-- Returns the deployment's secret, and makes the candidate it if there is none.
--
-- KEYS[1]  the secret     KEYS[2]  there once markers of lost state have been laid
-- ARGV     candidate; 1 if the caller has seen a secret here before, so that its absence is a loss; 1 if the caller has just laid the
--          markers
-- returns  the secret; nothing if the markers are to be laid first; '' if it is lost, and a caller that has seen it gives it back
local secret = redis.call('GET', KEYS[1])
if ARGV[3] ~= '1' and (secret or ARGV[2] ~= '1') and not redis.call('GET', KEYS[2]) then
  return {}
end
if not secret and ARGV[2] ~= '1' and ARGV[3] ~= '1' then
  return {''}
end
redis.call('SET', KEYS[2], '1')
if not secret then
  secret = ARGV[1]
  redis.call('SET', KEYS[1], secret)
end
return {secret}
