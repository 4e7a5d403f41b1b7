package wire

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// OwnFigure is policy.Figure with a reference for the name of its source.
type OwnFigure struct {
	Kind    policy.SourceKind
	Name    Ref
	Default int64
}

// OwnFigures are policy.Figures.
type OwnFigures struct{ Quota, Burst OwnFigure }

// putFigures writes the number of a policy's limits with figures in requests, and for each limit
// its index among all limits and those figures.
func putFigures(dst []byte, p *policy.Policy) []byte {
	var places []byte
	count := int64(0)
	eachLimit(p, func(index int64, l *policy.Limit) {
		if l.Own > 0 {
			f := &p.Figures[l.Own-1]
			places = putFigure(putFigure(putUvarint(places, index), &f.Quota), &f.Burst)
			count++
		}
	})
	return append(putUvarint(dst, count), places...)
}

// eachLimit calls each with the limits of a policy, in the order in which putPolicy writes them:
// the limits of each tier, or the limits of the policy if it has no tiers, and then the limits of
// the candidate. index counts them from 0.
func eachLimit(p *policy.Policy, each func(index int64, l *policy.Limit)) {
	index := int64(0)
	callEach := func(limits []policy.Limit) {
		for i := range limits {
			each(index, &limits[i])
			index++
		}
	}
	if len(p.Tiers) == 0 {
		callEach(p.Limits)
	}
	for i := range p.Tiers {
		callEach(p.LimitsOf(i))
	}
	callEach(p.Candidate)
}

func putFigure(dst []byte, f *policy.Figure) []byte {
	return putUvarint(putText(append(dst, byte(f.Source.Kind)), f.Source.Name), f.Default)
}

// readFigures reads the result of putFigures.
func (r *SetReader) readFigures(each func(index int, f OwnFigures)) {
	c, before := &r.c, int64(-1)
	for n := c.readWithin(1, r.policyLimits); n > 0 && c.err == nil; n-- {
		index := c.readWithin(before+1, r.policyLimits-1)
		before = index
		f := OwnFigures{r.readFigure(), r.readFigure()}
		if f.Quota.Kind == 0 && (f.Burst.Kind == 0 || f.Quota.Default == 0) {
			c.failWith(ErrValue)
		}
		if c.err == nil {
			each(int(index), f)
		}
	}
}

func (r *SetReader) readFigure() OwnFigure {
	kind, name := r.readSource()
	return OwnFigure{Kind: kind, Name: name, Default: r.c.readWithin(0, quota.MaxUnits)}
}

// readSource reads the place of a number in requests; a kind of 0 means no place.
func (r *SetReader) readSource() (kind policy.SourceKind, name Ref) {
	kind = policy.SourceKind(r.c.u8())
	if kind != 0 && !kind.Is(policy.OfNumbers) {
		r.c.failWith(ErrValue)
	}
	if name = r.readRef(policy.MaxText); (kind == 0) != (name.Len == 0) {
		r.c.failWith(ErrValue)
	}
	return kind, name
}
