package wire

import "github.com/weir-proxy/weir/shared/policy"

// Packed are policies as a snapshot has them whose policies have extras. The zero value is none.
type Packed struct {
	count int
	bytes []byte
}

// Add appends a policy.
func (p *Packed) Add(one *policy.Policy) {
	p.count++
	p.bytes = putPolicy(p.bytes, one, extrasFormat)
}

func (p *Packed) size() int {
	if p == nil {
		return 0
	}
	return p.count
}

// move appends the policies to dst and leaves none.
func (p *Packed) move(dst []byte) []byte {
	if p == nil {
		return dst
	}
	dst = append(dst, p.bytes...)
	*p = Packed{}
	return dst
}
