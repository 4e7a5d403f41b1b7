// Package shareddatatest has Envoy's shared data for native tests, with the real host's rules: one
// counter numbers all writes. A write under cas 0 overwrites. A write under another cas inserts if
// the key is absent, and must match if it is present.
package shareddatatest

import "sync"

// impossible is a cas that no write ever gets.
const impossible = 0xffffffff

// Data is the store. The zero value is empty. Before, if set, runs ahead of each operation, outside
// the lock, so that a test can let another worker in between.
type Data struct {
	Before func(op string, key []byte)

	mu     sync.Mutex
	values map[string]value
	writes uint32
}

type value struct {
	bytes []byte
	cas   uint32
}

// Get returns a copy of the value and its cas.
func (d *Data) Get(key []byte) ([]byte, uint32, bool) {
	d.before("get", key)
	d.mu.Lock()
	defer d.mu.Unlock()
	v, ok := d.values[string(key)]
	return append([]byte(nil), v.bytes...), v.cas, ok
}

// PutIfAbsent stores a value if the key has none.
func (d *Data) PutIfAbsent(key, b []byte) bool { return d.CompareAndSwap(key, b, impossible) }

// CompareAndSwap stores a value by the host's rules.
func (d *Data) CompareAndSwap(key, b []byte, cas uint32) bool {
	d.before("set", key)
	d.mu.Lock()
	defer d.mu.Unlock()
	if v, ok := d.values[string(key)]; ok && cas != 0 && cas != v.cas {
		return false
	}
	if d.values == nil {
		d.values = make(map[string]value)
	}
	d.writes++
	d.values[string(key)] = value{append([]byte(nil), b...), d.writes}
	return true
}

// Put overwrites.
func (d *Data) Put(key, b []byte) { d.CompareAndSwap(key, b, 0) }

// Len returns the number of keys.
func (d *Data) Len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.values)
}

func (d *Data) before(op string, key []byte) {
	if d.Before != nil {
		d.Before(op, key)
	}
}
