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

// putFigures writes how many limits of a policy have figures that requests hold, and for each its
// index among all limits and those figures.
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

// eachLimit calls a function with the limits of a policy in the order in which a snapshot has them.
func eachLimit(p *policy.Policy, each func(index int64, l *policy.Limit)) {
	index := int64(0)
	add := func(limits []policy.Limit) {
		for i := range limits {
			each(index, &limits[i])
			index++
		}
	}
	if len(p.Tiers) == 0 {
		add(p.Limits)
	}
	for i := range p.Tiers {
		add(p.LimitsOf(i))
	}
	add(p.Candidate)
}

func putFigure(dst []byte, f *policy.Figure) []byte {
	return putUvarint(putText(append(dst, byte(f.Source.Kind)), f.Source.Name), f.Default)
}

// figures reads what putFigures has written.
func (r *SetReader) figures(each func(index int, f OwnFigures)) {
	c, before := &r.c, int64(-1)
	for n := c.within(1, r.policyLimits); n > 0 && c.err == nil; n-- {
		index := c.within(before+1, r.policyLimits-1)
		before = index
		f := OwnFigures{r.figure(), r.figure()}
		if f.Quota.Kind == 0 && (f.Burst.Kind == 0 || f.Quota.Default == 0) {
			c.fail(ErrValue)
		}
		if c.err == nil {
			each(int(index), f)
		}
	}
}

func (r *SetReader) figure() OwnFigure {
	kind, name := r.valueSource()
	return OwnFigure{Kind: kind, Name: name, Default: r.c.within(0, quota.MaxUnits)}
}

// valueSource reads where a request says a number; a kind of 0 means nowhere.
func (r *SetReader) valueSource() (kind policy.SourceKind, name Ref) {
	kind = policy.SourceKind(r.c.u8())
	if kind != 0 && !kind.Is(policy.OfNumbers) {
		r.c.fail(ErrValue)
	}
	if name = r.ref(policy.MaxText); (kind == 0) != (name.Len == 0) {
		r.c.fail(ErrValue)
	}
	return kind, name
}
