-- Runs one command for each key, at one moment.
--
-- KEYS     keys
-- ARGV     the command; its arguments after the key
-- returns  its answer for each key
local out = {}
for i, key in ipairs(KEYS) do
  out[i] = redis.call(ARGV[1], key, unpack(ARGV, 2))
end
return out
