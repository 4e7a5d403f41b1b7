-- Tells which versions of the policy set are in force.
--
-- KEYS[1]  number of the current version     KEYS[2]  hash: rev, value, newest; see append.lua
-- KEYS[3]  hash number -> description     KEYS[4]  hash number -> document
-- returns  number, revision, rollout ('' for none), highest number that was ever given, digests of the current version and of the one
--          that is rolled out ('' for none, and for one whose description or document is lost)
local held = redis.call('HMGET', KEYS[2], 'rev', 'value', 'newest')
local current, rollout = redis.call('GET', KEYS[1]) or '0', held[2] or ''

local documents = {}
for _, number in ipairs(redis.call('HKEYS', KEYS[4])) do
  documents[number] = true
end

local function digest(number)
  local description = number and documents[number] and redis.call('HGET', KEYS[3], number)
  return description and string.match(description, '"digest":"(%x*)"') or ''
end

return {current, held[1] or '0', rollout, held[3] or '0', digest(current), digest(string.match(rollout, '"version":(%d+)'))}
