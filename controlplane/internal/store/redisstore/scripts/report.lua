-- Stores the report of a node about itself, if the node is known.
--
-- KEYS[1]  hash node -> description     KEYS[2]  hash node -> report
-- ARGV     node, report
-- returns  1, or 0 if the node is not known
if not redis.call('HGET', KEYS[1], ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
