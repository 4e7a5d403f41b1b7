package wire

import "github.com/weir-proxy/weir/shared/policy"

func putRanges(dst []byte, ranges []policy.Range) []byte {
	dst = putUvarint(dst, int64(len(ranges)))
	for _, one := range ranges {
		dst = append(append(dst, one.First[:]...), one.Last[:]...)
	}
	return dst
}

// readSources reads sources for a use. A kind for another use, or an unknown kind, is refused.
func (r *SetReader) readSources(use policy.SourceUse, each func(kind policy.SourceKind, name Ref)) {
	for n := r.c.readWithin(0, policy.MaxListItems); n > 0 && r.c.err == nil; n-- {
		kind := policy.SourceKind(r.c.u8())
		if !kind.Is(use) {
			r.c.failWith(ErrValue)
		}
		each(kind, r.readRef(policy.MaxText))
	}
}

// readRanges reads ranges of addresses in rising order that do not overlap.
func (r *SetReader) readRanges(each func(policy.Range)) {
	c := &r.c
	var last policy.Range
	// A network as wide as ::/0 is two ranges, before the IPv4 addresses and after them.
	for n, i := c.readWithin(0, policy.MaxAddresses+1), int64(0); i < n && c.err == nil; i++ {
		var one policy.Range
		copy(one.First[:], c.readBytes(16))
		copy(one.Last[:], c.readBytes(16))
		if string(one.First[:]) > string(one.Last[:]) || i > 0 && string(one.First[:]) <= string(last.Last[:]) {
			c.failWith(ErrValue)
		}
		last = one
		each(one)
	}
}
