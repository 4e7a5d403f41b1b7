package wire

import "github.com/weir-proxy/weir/shared/policy"

// putReserve writes the classes of a policy's reserves.
func putReserve(dst []byte, p *policy.Policy) []byte {
	dst = putUvarint(dst, int64(len(p.Reserve)))
	for _, one := range p.Reserve {
		dst = append(dst, byte(one.Class))
	}
	return dst
}

// readReserve reads the result of putReserve. The last class cannot have a reserve.
func (r *SetReader) readReserve(each func(class uint8)) {
	least := uint8(0)
	for n := r.c.readWithin(1, policy.MaxLimits-1); n > 0 && r.c.err == nil; n-- {
		class := r.readOneOf(least, policy.MaxClasses-2)
		least = class + 1
		if r.c.err == nil {
			each(class)
		}
	}
}
