package shareddata

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/keyhash"
)

// Sets is a table of a fixed number of values, the sets. Each key has its place in one set. The
// zero value is not ready; make Sets with NewSets.
type Sets struct {
	data  Data
	count uint64
	// key is the key of the last opened set.
	key [9]byte
}

// NewSets returns the table whose values are under a name in the space, with at least one set.
func NewSets(data Data, space Space, name Name, count int) Sets {
	s := Sets{data: data, count: uint64(max(count, 1))}
	prefix := space.Key(name)
	copy(s.key[:], prefix[:])
	return s
}

// Open returns the set of a key, like Data.Get.
func (s *Sets) Open(key keyhash.Key) (value []byte, cas uint32, found bool) {
	set := binary.LittleEndian.Uint64(key[:8]) % s.count
	binary.LittleEndian.PutUint32(s.key[5:], uint32(set))
	return s.data.Get(s.key[:])
}

// Swap replaces the last opened set, like the function Swap.
func (s *Sets) Swap(value []byte, cas uint32, found bool) bool {
	return Swap(s.data, s.key[:], value, cas, found)
}
