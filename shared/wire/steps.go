package wire

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// putSteps appends the steps of a failure ladder up to the last step, whose time is 0.
func putSteps(dst []byte, f *policy.OnFailure) []byte {
	for _, s := range f {
		if s.For == 0 {
			s = f.Last() // An empty ladder has a last step, too.
		}
		dst = putUvarint(append(dst, byte(s.Do), boolByte(s.Empty)), int64(s.For))
		if s.For == 0 {
			break
		}
	}
	return dst
}

// readSteps reads the steps of a failure ladder.
func (r *SetReader) readSteps() (f policy.OnFailure) {
	for i := range f {
		s := &f[i]
		s.Do = policy.Step(r.readOneOf(uint8(policy.StepShare), uint8(policy.StepDeny)))
		s.Empty = r.readOneOf(0, 1) == 1
		s.For = quota.Span(r.c.readWithin(0, int64(quota.MaxWindow)))
		if s.For == 0 {
			return f
		}
	}
	r.c.failWith(ErrValue) // None of them is the last.
	return policy.OnFailure{}
}
