package redisstore

import (
	"encoding/hex"

	"github.com/weir-proxy/weir/shared/keyhash"
)

// Every key starts with weir: and has a hash tag, the part in braces, that decides its slot in
// Redis Cluster. Keys that one script touches together must share a slot, so each kind of thing has
// a tag: {meta} the policy set, orders and nodes, {decisions} and {series} the files of these
// names, and each of docs.Topics its own. Buckets are spread over tagCount tags by their hash: a
// batch then needs at most that many scripts in a cluster, and all parts of a cluster share the
// work.
const (
	keyVersion   = "weir:{meta}:version"   // number of the current policy set version
	keyVersions  = "weir:{meta}:versions"  // hash: number → description, JSON
	keyDocuments = "weir:{meta}:documents" // hash: number → document as written
	keyRollout   = "weir:{meta}:rollout"   // hash: rev, value, newest; see append.lua
	keySecret    = "weir:{meta}:secret"    // 16 bytes that key the hash of partition keys
	keyLaid      = "weir:{meta}:laid"      // the wire.Protocol of the store, once markers were laid; see losses.go
	keyStates    = "weir:{meta}:states"    // hash: node → what it reported, JSON
	keyNodes     = "weir:{meta}:nodes"     // hash: node → description, JSON
	keySeen      = "weir:{meta}:seen"      // sorted set: node by when it was seen, ms

	tagCount = 64

	// draftSuffix ends the key of a bucket's second ledger, by which nodes with a draft are
	// decided.
	draftSuffix = ":draft"
)

// bucketTag returns the number of a bucket's tag.
func bucketTag(bucket keyhash.Key) byte { return bucket[0] % tagCount }

// permitsKey is weir:{TT}:p:HASH, where the permits of a bucket are.
func permitsKey(bucket keyhash.Key) string { return bucketKeyOf("}:p:", bucket) }

// bucketKey is weir:{TT}:b:HASH, TT being the tag in hexadecimal, or weir:{TT}:w:HASH for a bucket
// of a window algorithm: two things, should a policy change its algorithm.
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
