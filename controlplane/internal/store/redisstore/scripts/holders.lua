-- Reads the holders of a bucket's permits, see permits.lua. clock.lua before it sets now, in
-- microseconds.
--
-- KEYS[1]  the bucket's permits
-- returns  now, and then for each node with permits: the node, its sequence number, permits, until,
--          ceiling, want
local CHUNK = 1000 -- of fields in one call
local function whole(n) return string.format('%.0f', n) end

local reply = {whole(now)}
local fields = redis.call('HKEYS', KEYS[1])
for from = 1, #fields, CHUNK do
  local values = redis.call('HMGET', KEYS[1], unpack(fields, from, math.min(from + CHUNK - 1, #fields)))
  for i = 1, #values do
    local node = fields[from + i - 1]
    local held = #node >= 8 and cmsgpack.unpack(values[i])
    if held and held[3] > now then
      reply[#reply + 1] = node
      for k = 1, 5 do
        reply[#reply + 1] = whole(held[k])
      end
    end
  end
end
return reply
