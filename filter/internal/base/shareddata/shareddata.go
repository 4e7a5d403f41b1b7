// Package shareddata has the data that the VMs of an Envoy process share: Envoy's shared data, the
// names of all values that the filter keeps there, and the two forms of value that several packages
// use.
package shareddata

import "encoding/binary"

// Data is Envoy's shared data. It can neither delete keys nor let them expire.
type Data interface {
	// Get returns the value with its compare-and-swap number. The value is valid until the next
	// call that returns bytes.
	Get(key []byte) (value []byte, cas uint32, found bool)
	// PutIfAbsent stores the value if the key has none, and reports whether it did.
	PutIfAbsent(key, value []byte) bool
	// CompareAndSwap stores the value if no VM has written the key since Get returned cas, and
	// reports whether it did.
	CompareAndSwap(key, value []byte, cas uint32) bool
	// Put overwrites. It is for values whose last writer is right.
	Put(key, value []byte)
}

// Space begins the key of every value in one name space: plugins with different spaces share
// nothing.
type Space [4]byte

// Key is the key of a value that a space has once. The keys of families of values begin with such a
// Key.
type Key [5]byte

// Key returns the key of a name in the space.
func (s Space) Key(n Name) Key { return Key{s[0], s[1], s[2], s[3], byte(n)} }

// Swap stores a value for which Get returned cas and found, unless another VM has written it since.
// It reports whether it did.
func Swap(data Data, key, value []byte, cas uint32, found bool) bool {
	if found {
		return data.CompareAndSwap(key, value, cas)
	}
	return data.PutIfAbsent(key, value)
}

// Agree returns the value that the VMs of the space agree on under a name: the stored value, if it
// has the length of the offered value, or else the offered value. The result is in value.
func Agree(data Data, key Key, value []byte) {
	if data.PutIfAbsent(key[:], value) {
		return
	}
	if known, _, found := data.Get(key[:]); found && len(known) == len(value) {
		copy(value, known)
	}
}

// Number is a number that the VMs of a space share.
type Number struct {
	data Data
	key  Key
}

// NewNumber returns the number of a name in the space.
func NewNumber(data Data, space Space, n Name) Number { return Number{data, space.Key(n)} }

// Load returns the number: 0 before the first Store, and for bytes that are no number.
func (n *Number) Load() int64 {
	value, _, found := n.data.Get(n.key[:])
	if !found || len(value) != 8 {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(value))
}

// Store changes the number. If several VMs do so at once, the last one wins.
func (n *Number) Store(v int64) {
	var value [8]byte
	binary.LittleEndian.PutUint64(value[:], uint64(v))
	n.data.Put(n.key[:], value[:])
}
