-- Puts the states of a bucket after a settlement in the place of those before it, unless one of them
-- has changed meanwhile, and forgets the reservation.
--
-- KEYS     the reservation, then the states
-- ARGV     the reservation as it was read, then for each state: as it was read, the new one or nothing if it stays, its expiry in ms
-- returns  1 if it was stored
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return 0
end
for i = 2, #KEYS do
  if (redis.call('GET', KEYS[i]) or '') ~= ARGV[3 * i - 4] then
    return 0
  end
end
for i = 2, #KEYS do
  if ARGV[3 * i - 3] ~= '' then
    redis.call('SET', KEYS[i], ARGV[3 * i - 3], 'PXAT', ARGV[3 * i - 2])
  end
end
redis.call('SET', KEYS[1], '', 'PX', 1)
return 1
