// Package keyhash holds the keyed hashes by which nodes and the control plane know buckets and
// consumers. Nothing else about a client leaves a node.
package keyhash

import (
	"encoding/hex"
	"errors"
)

// Key is the keyed hash of a bucket's partition or of a consumer. The zero value names nothing.
type Key [Size]byte

// Size is the length of a key in bytes.
const Size = 16

// String returns the key in hexadecimal, as in logs, the REST interface and the store.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// Less reports whether k comes before other in byte order.
func (k *Key) Less(other *Key) bool {
	for i := range k {
		if k[i] != other[i] {
			return k[i] < other[i]
		}
	}
	return false
}

// Parse reads the result of String. Any other text is an error that quotes it.
func Parse(text string) (Key, error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != Size {
		return Key{}, errors.New(`"` + text + `" is not a hash of 16 bytes in hexadecimal`)
	}
	return Key(b), nil
}
