package bucketstore

import "encoding/binary"

// Number is a number that all VMs of the process share under a letter, which is none of the store's own; 0 before the first
// SetNumber and for bytes that are no number.
func (st *Store) Number(letter byte) int64 {
	key := st.numberKey(letter)
	value, _, found := st.shared.Get(key[:])
	if !found || len(value) != 8 {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(value))
}

// SetNumber changes the number. Of several VMs that do so at once one wins.
func (st *Store) SetNumber(letter byte, n int64) {
	key := st.numberKey(letter)
	var value [8]byte
	binary.LittleEndian.PutUint64(value[:], uint64(n))
	if _, cas, found := st.shared.Get(key[:]); found {
		st.shared.CompareAndSwap(key[:], value[:], cas)
	} else {
		st.shared.PutIfAbsent(key[:], value[:])
	}
}

func (st *Store) numberKey(letter byte) [5]byte {
	return [5]byte{st.key[0], st.key[1], st.key[2], st.key[3], letter}
}
