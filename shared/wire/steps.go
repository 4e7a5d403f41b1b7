package wire

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// thens are the last steps of a failure ladder, by the byte that every filter reads.
var thens = [...]policy.Step{policy.StepAllow, policy.StepDeny, policy.StepShare}

// localThen is a failure ladder in the form that every filter reads: the share for a time, then a
// last step. It reports whether that is the whole ladder.
func localThen(f *policy.OnFailure) (then byte, localFor quota.Span, all bool) {
	last := f.Last()
	for i, step := range thens {
		if step == last.Do {
			then = byte(i)
		}
	}
	switch {
	case f[0].For == 0:
		return then, 0, !f[0].Empty
	case f[0].Do == policy.StepShare && f[1].For == 0 && last.Do != policy.StepShare:
		return then, f[0].For, !f[0].Empty
	}
	return then, 0, false
}

// putSteps appends the steps of a ladder up to the one without a time.
func putSteps(dst []byte, f *policy.OnFailure) []byte {
	for _, s := range f {
		dst = putUvarint(append(dst, byte(s.Do), boolByte(s.Empty)), int64(s.For))
		if s.For == 0 {
			break
		}
	}
	return dst
}

// steps reads what putSteps wrote.
func (r *SetReader) steps() (f policy.OnFailure) {
	for i := range f {
		s := &f[i]
		s.Do, s.Empty = policy.Step(r.oneOf(uint8(policy.StepShare), uint8(policy.StepDeny))), r.oneOf(0, 1) == 1
		s.For = quota.Span(r.c.within(0, int64(quota.MaxWindow)))
		if s.For == 0 {
			return f
		}
	}
	r.c.fail(ErrValue) // None of them is the last.
	return policy.OnFailure{}
}
