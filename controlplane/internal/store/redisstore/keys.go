package redisstore

import (
	"encoding/hex"

	"github.com/weir-proxy/weir/shared/keyhash"
)

// Every key starts with weir: and has a hash tag, the part in braces, which decides its slot in
// Redis Cluster. Keys that one script uses together must share a slot. So the policy set,
// enforcement and nodes have the tag {meta}; refused requests {decisions}; histories {series}; and
// each topic of package docs has its own tag. Buckets are spread over tagCount tags by their hash.
// So a batch needs at most tagCount scripts, and all servers of a cluster share the work.
const (
	keyVersion    = "weir:{meta}:version"   // number of the current policy set version
	keyVersions   = "weir:{meta}:versions"  // hash: number → description, JSON
	keyDocuments  = "weir:{meta}:documents" // hash: number → document as written
	keyRollout    = "weir:{meta}:rollout"   // hash: rev, value, newest; see append.lua
	keySecret     = "weir:{meta}:secret"    // 16 bytes that key the hash of partition keys
	keyProtocol   = "weir:{meta}:protocol"  // the store's wire.Protocol, once the markers are laid; see losses.go
	keyUnreleased = "weir:{meta}:laid"      // the same in builds from before 0.1.0
	keyStates     = "weir:{meta}:states"    // hash: node → its last report, JSON
	keyNodes      = "weir:{meta}:nodes"     // hash: node → description, JSON
	keySeen       = "weir:{meta}:seen"      // sorted set: node by the time it was last seen, in ms

	tagCount = 64

	// draftSuffix ends the key of a bucket's draft ledger. Nodes with a draft are decided by that
	// ledger.
	draftSuffix = ":draft"
)

// bucketTag returns the number of a bucket's tag.
func bucketTag(bucket keyhash.Key) byte { return bucket[0] % tagCount }

// permitsKey returns weir:{TT}:p:HASH, the key of a bucket's permits.
func permitsKey(bucket keyhash.Key) string { return bucketKeyOf("}:p:", bucket) }

// bucketKey returns weir:{TT}:b:HASH, where TT is the tag in hexadecimal, or weir:{TT}:w:HASH for a
// bucket of a window algorithm. If a policy changes its algorithm, the two states do not meet.
func bucketKey(bucket keyhash.Key, windowed bool) string {
	kind := "}:b:"
	if windowed {
		kind = "}:w:"
	}
	return bucketKeyOf(kind, bucket)
}

func bucketKeyOf(kind string, bucket keyhash.Key) string {
	key := make([]byte, 0, len("weir:{00}:b:")+2*len(bucket))
	key = append(key, "weir:{"...)
	key = hex.AppendEncode(key, []byte{bucketTag(bucket)})
	key = append(key, kind...)
	return string(hex.AppendEncode(key, bucket[:]))
}
