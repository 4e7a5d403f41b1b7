package wire

import "github.com/weir-proxy/weir/shared/policy"

func putRanges(dst []byte, ranges []policy.Range) []byte {
	dst = putUvarint(dst, int64(len(ranges)))
	for _, one := range ranges {
		dst = append(append(dst, one.First[:]...), one.Last[:]...)
	}
	return dst
}

func (r *SetReader) sources(kinds uint, each func(kind policy.SourceKind, name Ref)) {
	for n := r.c.within(0, policy.MaxListItems); n > 0 && r.c.err == nil; n-- {
		kind := policy.SourceKind(r.oneOf(uint8(policy.SourceHeader), uint8(policy.SourceFound)))
		if kinds>>kind&1 == 0 {
			r.c.fail(ErrValue)
		}
		each(kind, r.ref(policy.MaxText))
	}
}

// ranges reads ranges of addresses in rising order and apart.
func (r *SetReader) ranges(each func(policy.Range)) {
	c := &r.c
	var last policy.Range
	// A network as wide as ::/0 is two ranges, before the IPv4 addresses and after them.
	for n, i := c.within(0, policy.MaxAddresses+1), int64(0); i < n && c.err == nil; i++ {
		var one policy.Range
		copy(one.First[:], c.bytes(16))
		copy(one.Last[:], c.bytes(16))
		if string(one.First[:]) > string(one.Last[:]) || i > 0 && string(one.First[:]) <= string(last.Last[:]) {
			c.fail(ErrValue)
		}
		last = one
		each(one)
	}
}
