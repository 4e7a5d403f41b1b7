package spelling

import (
	"encoding/binary"
	"math"
	"strconv"
)

// AppendClaim appends a claim, or an element of a list, as Envoy hands it over: a text as it is, a
// whole number in decimal, true and false in words. Other numbers stay the eight bytes that they
// are: 1 and 1.0 are one number to Envoy. Numbers that are not exact there, from 2⁵³ on, are the
// nearest that is.
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

// ListKind is whether a claim is a list.
type ListKind uint8

// A claim is one value, a list of values, or what holds objects, whose fields Envoy hands over in
// another order for each request.
const (
	NoList ListKind = iota
	ValueList
	ObjectList
)

// KindOf tells what a claim is. Envoy hands lists over in the form of header maps with the elements
// as names, and objects in that of maps with values.
func KindOf(claim []byte) ListKind {
	count, ok := pairs(claim)
	if !ok {
		return NoList
	}
	at := 0
	for i := range count {
		var element []byte
		element, at = Element(claim, i, at)
		if _, nested := pairs(element); nested || binary.LittleEndian.Uint32(claim[8+8*i:]) > 0 {
			return ObjectList
		}
	}
	return ValueList
}

// Element returns the i-th element of a list, and where the next one stands; at is where this one
// does, 0 for the first. After the last one next is 0.
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

// pairs reports whether a value has exactly the form of a header map, and of how many pairs.
func pairs(value []byte) (count int, ok bool) {
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
