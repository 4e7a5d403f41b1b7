package wire

import "github.com/weir-proxy/weir/shared/policy"

// putReserve writes the classes that something of a policy's limits is kept for.
func putReserve(dst []byte, p *policy.Policy) []byte {
	dst = putUvarint(dst, int64(len(p.Reserve)))
	for _, one := range p.Reserve {
		dst = append(dst, byte(one.Class))
	}
	return dst
}

// reserve reads what putReserve has written. The last class has none to keep anything from.
func (r *SetReader) reserve(each func(class uint8)) {
	least := uint8(0)
	for n := r.c.within(1, policy.MaxLimits-1); n > 0 && r.c.err == nil; n-- {
		class := r.oneOf(least, policy.MaxClasses-2)
		least = class + 1
		if r.c.err == nil {
			each(class)
		}
	}
}
