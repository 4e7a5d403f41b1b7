package spelling

import (
	"encoding/binary"
	"math"
	"strconv"
)

// AppendClaim appends a claim, or an element of a list, as Envoy returns it: a text unchanged, a
// whole number in decimal, true and false in words. Other numbers stay eight bytes: 1 and 1.0 are
// the same number to Envoy. Numbers from 2⁵³ on that are not exact there are rounded to the nearest
// exact number.
func AppendClaim(dst, value []byte) []byte {
	switch {
	case len(value) == 1 && value[0] <= 1:
		return append(dst, [...]string{"false", "true"}[value[0]]...)
	case len(value) != 8:
		return append(dst, value...)
	}
	number := math.Float64frombits(binary.LittleEndian.Uint64(value))
	if number != math.Trunc(number) || math.Abs(number) >= 1<<63 {
		return append(dst, value...)
	}
	if number < 0 {
		dst, number = append(dst, '-'), -number
	}
	return strconv.AppendUint(dst, uint64(number), 10)
}

// ListKind is the kind of a claim: a list or not.
type ListKind uint8

// A claim is one value, a list of values, or contains objects, whose fields Envoy returns in
// another order for each request.
const (
	NoList ListKind = iota
	ValueList
	ObjectList
)

// KindOf returns the kind of a claim. Envoy returns lists in the form of header maps with the
// elements as names, and objects in the form of maps with values.
func KindOf(claim []byte) ListKind {
	count, ok := countPairs(claim)
	if !ok {
		return NoList
	}
	at := 0
	for i := range count {
		var element []byte
		element, at = Element(claim, i, at)
		if _, nested := countPairs(element); nested || binary.LittleEndian.Uint32(claim[8+8*i:]) > 0 {
			return ObjectList
		}
	}
	return ValueList
}

// Element returns the i-th element of a list, and the position of the next element. at is the
// position of this element, 0 for the first. After the last element next is 0.
func Element(list []byte, i, at int) (element []byte, next int) {
	count := int(binary.LittleEndian.Uint32(list))
	if i >= count {
		return nil, 0
	}
	if at == 0 {
		at = 4 + 8*count
	}
	end := at + int(binary.LittleEndian.Uint32(list[4+8*i:]))
	return list[at:end], end + 2
}

// countPairs reports whether a value has exactly the form of a header map, and how many pairs it
// has.
func countPairs(value []byte) (count int, ok bool) {
	if len(value) < 4 {
		return 0, false
	}
	n := uint64(binary.LittleEndian.Uint32(value))
	if 4+8*n > uint64(len(value)) {
		return 0, false
	}
	size := 4 + 8*n
	for i := uint64(0); i < n; i++ {
		size += uint64(binary.LittleEndian.Uint32(value[4+8*i:])) + 2
		size += uint64(binary.LittleEndian.Uint32(value[8+8*i:]))
	}
	return int(n), size == uint64(len(value))
}
