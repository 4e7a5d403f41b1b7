-- Reads all that every control plane follows, or some parts of it, at one moment. In a cluster the
-- parts are on several servers.
--
-- KEYS     the keys of each part, in the order of the parts
-- ARGV     the parts, a letter each; then, for part s: candidate; 1 if the caller has seen a secret here before, so a missing one is
--          lost; 1 if the caller has just laid the markers; the caller's protocol
-- returns  a list of texts for each part
local at = 0
local function key()
  at = at + 1
  return KEYS[at]
end

local parts = {}

-- l: counts the looks of all control planes at a server. A server that goes back to an older state
-- goes back to a smaller number.
--
-- keys     the number; the marker of lost state beside it
-- returns  the number, 1 if the marker is there, the run id of the server, '' without the right to INFO
function parts.l()
  local number, marker = key(), key()
  local n = string.format('%.0f', (tonumber(redis.call('GET', number) or '') or 0) + 1)
  redis.call('SET', number, n)
  local info = redis.pcall('INFO', 'server')
  local id = type(info) == 'string' and string.match(info, 'run_id:(%x+)')
  return {n, redis.call('GET', marker) and '1' or '0', id or ''}
end

-- s: the deployment's secret. If there is none, the candidate becomes the secret. A store of a newer protocol stays unchanged.
--
-- keys     the secret; the protocol of the store, once the markers of lost state are laid
-- returns  the secret and the protocol; nothing if the markers must be laid first; '' alone if the secret is lost and a caller
--          that has seen it must give it back
function parts.s()
  local name, markers = key(), key()
  local secret, laid = redis.call('GET', name), redis.call('GET', markers)
  local protocol = tonumber(laid or '') or 0
  if protocol > tonumber(ARGV[5]) then
    return {secret or '', laid}
  end
  if ARGV[4] ~= '1' and (secret or ARGV[3] ~= '1') and not laid then
    return {}
  end
  if not secret and ARGV[3] ~= '1' and ARGV[4] ~= '1' then
    return {''}
  end
  if protocol < tonumber(ARGV[5]) then
    redis.call('SET', markers, ARGV[5])
  end
  if not secret then
    secret = ARGV[2]
    redis.call('SET', name, secret)
  end
  return {secret, ARGV[5]}
end

-- v: the versions of the policy set that are in force.
--
-- keys     number of the current version; hash: rev, value, newest, see append.lua; hash number -> description; hash number ->
--          document
-- returns  number, revision, rollout ('' for none), highest number that was ever given, digests of the current version and of the
--          draft ('' without a draft, and for a version whose description or document is lost)
function parts.v()
  local current, rollouts, descriptions, texts = key(), key(), key(), key()
  local held = redis.call('HMGET', rollouts, 'rev', 'value', 'newest')
  local number, rollout = redis.call('GET', current) or '0', held[2] or ''
  local documents = {}
  for _, one in ipairs(redis.call('HKEYS', texts)) do
    documents[one] = true
  end
  local function digest(of)
    local description = of and documents[of] and redis.call('HGET', descriptions, of)
    return description and string.match(description, '"digest":"(%x*)"') or ''
  end
  return {number, held[1] or '0', rollout, held[3] or '0', digest(number), digest(string.match(rollout, '"version":(%d+)'))}
end

-- r: the revision of a document.
function parts.r()
  return {redis.call('HGET', key(), 'rev') or '0'}
end

-- t: the head of a topic, see commit.lua.
function parts.t()
  local held = redis.call('HMGET', key(), 'first', 'rev', 'cleared')
  return {held[1] or '0', held[2] or '0', held[3] or '0'}
end

-- c: the time.
function parts.c()
  return redis.call('TIME')
end

-- A topic with damaged keys has an empty list; the other parts are not affected.
local out, several = {}, #ARGV[1] > 1
for part in string.gmatch(ARGV[1], '%a') do
  if several and part ~= 's' and part ~= 'l' then
    local ok, texts = pcall(parts[part])
    out[#out + 1] = ok and texts or {}
  else
    out[#out + 1] = parts[part]()
  end
end
return out
