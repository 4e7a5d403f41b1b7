package wire

import "github.com/weir-proxy/weir/shared/policy"

// Packed holds policies in the form of a snapshot. The zero value holds none.
type Packed struct {
	count int
	bytes []byte
}

// Add appends a policy.
func (p *Packed) Add(one *policy.Policy) {
	p.count++
	p.bytes = putPolicy(p.bytes, one)
}

func (p *Packed) encodedSize() int {
	if p == nil {
		return 0
	}
	return p.count
}

// moveTo appends the policies to dst and empties the Packed.
func (p *Packed) moveTo(dst []byte) []byte {
	if p == nil {
		return dst
	}
	dst = append(dst, p.bytes...)
	*p = Packed{}
	return dst
}
