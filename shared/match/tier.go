package match

import (
	"encoding/binary"

	"github.com/dchest/siphash"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
)

// consumerFormat opens what a ConsumerKey is the hash of, which is never the same as a bucket's.
const consumerFormat = 2

// ConsumerKey is the keyed hash by which the control plane and the nodes know a consumer: where its value was found, and the
// value itself. It is all that they tell each other of it.
func ConsumerKey(secret [16]byte, s policy.Source, value string) keyhash.Key {
	b := putText([]byte{consumerFormat, byte(s.Kind)}, []byte(s.Name))
	return hashed(secret, putText(append(b, 1), []byte(value)))
}

// findTier finds the caller's tier, once for each request: the first source that holds one of the tiers. A value that is given
// more than once is none.
func (ix *Index) findTier(a *Attributes) {
	if ix.tier >= 0 {
		return
	}
	ix.tier = ix.head.DefaultTier
	for _, s := range ix.tierSources {
		var name []byte
		if s.kind == policy.SourceFound {
			if s.found == 0 || s.found != ix.foundAt(a) {
				continue
			}
			ix.tier = int(s.tier)
			return
		}
		if s.kind == policy.SourceAssignment {
			name = ix.assigned(a)
		} else if ix.key = ix.key[:0]; ix.putSource(s, a) {
			name, _ = encodedValue(ix.key)
		}
		for i, ref := range ix.tiers {
			if text.Equal(ix.Text(ref), name) {
				ix.tier = i
				return
			}
		}
	}
}

// foundAt is the place among the sources, from 1, at which the request's consumer is found; 0 for none.
func (ix *Index) foundAt(a *Attributes) uint8 {
	for i, s := range ix.sources {
		if ix.key = ix.key[:0]; ix.putSource(s, a) {
			return uint8(i) + 1
		}
	}
	return 0
}

// assigned is the tier that the request's consumer has been assigned.
func (ix *Index) assigned(a *Attributes) []byte {
	if a.Consumers == nil {
		return nil
	}
	ix.findPerson(a)
	return ix.person.Tier
}

// consumer is the ConsumerKey of the request's consumer, who is known by the first source that is present.
func (ix *Index) consumer(a *Attributes) (keyhash.Key, bool) {
	for _, s := range ix.sources {
		ix.key = putText(append(ix.key[:0], consumerFormat, byte(s.kind)), ix.Text(s.name))
		value := len(ix.key)
		if !ix.putSource(s, a) {
			continue
		}
		if ix.key[value] != 1 {
			return keyhash.Key{}, false // A value that is given more than once names nobody.
		}
		return ix.hashKey(), true
	}
	return keyhash.Key{}, false
}

func (ix *Index) hashKey() keyhash.Key { return hashed(ix.secret, ix.key) }

func hashed(secret [16]byte, text []byte) keyhash.Key {
	k0, k1 := binary.LittleEndian.Uint64(secret[:8]), binary.LittleEndian.Uint64(secret[8:])
	lo, hi := siphash.Hash128(k0, k1, text)
	var k keyhash.Key
	binary.LittleEndian.PutUint64(k[:8], lo)
	binary.LittleEndian.PutUint64(k[8:], hi)
	return k
}
