package policy

import "github.com/weir-proxy/weir/shared/quota"

// Inherit gives the limits of a list their Root: that of the limit which each takes the place of
// among those before, so that what was used of that one counts on. That is the one with the same
// window, and for those that have none, one after the other, the one whose window is nearest. A new
// limit gets that of the one with its window among others, which stood in the list once or stand in
// those of other tiers. If there is none, it gets a root that neither a limit nor another has: 0
// the one with the longest window, the others their window. Without limits before and others, a
// list so means the same buckets whatever its order is.
func Inherit(limits, before, others []Limit) {
	done := takeSame(limits, before, 0)
	done = takeNearest(limits, before, done)
	for i := longest(limits, done); i >= 0; i = longest(limits, done) {
		limits[i].Root = newRoot(&limits[i], limits, others, done)
		done |= 1 << i
	}
}

// InheritOwn gives the limits that a consumer has of its own their Root: those of the policy's
// limits with the same windows, then those of its own list before, and then those of the policy's
// limits whose windows are nearest. Further ones get the first roots that are free, which are below
// the shortest window: lists that come and go have no more buckets than limits.
func InheritOwn(limits, of, before []Limit) {
	done := takeSame(limits, of, 0)
	done = takeSame(limits, before, done)
	done = takeNearest(limits, before, done)
	done = takeNearest(limits, of, done)
	for i := longest(limits, done); i >= 0; i = longest(limits, done) {
		root := quota.Span(1)
		for hasRoot(limits, done, root) {
			root++
		}
		limits[i].Root = root
		done |= 1 << i
	}
}

// takeSame gives limits that are not done the roots of those before with the same windows, and
// takeNearest those of the nearest windows. They return which limits are done then.
func takeSame(limits, before []Limit, done uint) uint {
	for i := range limits {
		if was := sameWindow(&limits[i], before); done>>i&1 == 0 && was != nil && !hasRoot(limits, done, was.Root) {
			limits[i].Root = was.Root
			done |= 1 << i
		}
	}
	return done
}

func takeNearest(limits, before []Limit, done uint) uint {
	for {
		i, j := nearest(limits, before, done)
		if j < 0 {
			return done
		}
		limits[i].Root = before[j].Root
		done |= 1 << i
	}
}

// newRoot is the root of a limit that takes no other's place.
func newRoot(l *Limit, limits, others []Limit, done uint) quota.Span {
	if was := sameWindow(l, others); was != nil && !hasRoot(limits, done, was.Root) {
		return was.Root
	}
	root := quota.Span(0)
	for hasRoot(limits, done, root) || isRootOf(others, root) {
		root = max(root+1, l.Window)
	}
	return root
}

// sameWindow is the first limit of a list with the window of a limit; nil if there is none.
func sameWindow(l *Limit, list []Limit) *Limit {
	for i := range list {
		if !l.InFlight && !list[i].InFlight && l.Window == list[i].Window {
			return &list[i]
		}
	}
	return nil
}

// nearest finds a limit that is not done, and one before whose root is free, with windows of the
// least ratio, the longest of several; -1 if there are none.
func nearest(limits, before []Limit, done uint) (limit, was int) {
	least := 0.0
	was = -1
	for i := range limits {
		for j := range before {
			if done>>i&1 == 1 || limits[i].InFlight || before[j].InFlight || hasRoot(limits, done, before[j].Root) {
				continue
			}
			ratio := float64(limits[i].Window) / float64(before[j].Window)
			if ratio < 1 {
				ratio = 1 / ratio
			}
			longer := was >= 0 && limits[i].Window+before[j].Window > limits[limit].Window+before[was].Window
			if was < 0 || ratio < least || ratio == least && longer {
				limit, was, least = i, j, ratio
			}
		}
	}
	return limit, was
}

// longest is the limit with the longest window of those that are not done; -1 if all are.
func longest(limits []Limit, done uint) int {
	at := -1
	for i := range limits {
		if done>>i&1 == 0 && !limits[i].InFlight && (at < 0 || limits[i].Window > limits[at].Window) {
			at = i
		}
	}
	return at
}

// hasRoot reports whether one of the limits that are done has a root.
func hasRoot(limits []Limit, done uint, root quota.Span) bool {
	for i := range limits {
		if done>>i&1 == 1 && limits[i].Root == root {
			return true
		}
	}
	return false
}

// isRootOf reports whether one of the limits of a list has a root.
func isRootOf(list []Limit, root quota.Span) bool {
	for i := range list {
		if !list[i].InFlight && list[i].Root == root {
			return true
		}
	}
	return false
}

// InheritSteps is Inherit for a list that has each limit once for each of so many steps: see
// Policy.Steps. Those before are the limits that the document named then.
func InheritSteps(limits, before, others []Limit, steps int) {
	named := len(limits) / steps
	if named == 0 {
		return
	}
	Inherit(limits[:named], before, others)
	for i := named; i < len(limits); i++ {
		limits[i].Root = limits[i%named].Root
	}
}

// StepOf is the step to which the n-th limit of a list of the policy belongs: see Steps.
func (p *Policy) StepOf(limits []Limit, n int) int { return n / max(len(limits)/p.Steps(), 1) }

// Find returns the limit in a list of the policy that has the buckets of a limit, of the same list
// at another time, in a step. It reports false if there is none.
func (p *Policy) Find(limits []Limit, like *Limit, step int) (Limit, bool) {
	for i := range limits {
		if l := &limits[i]; l.Root == like.Root && l.InFlight == like.InFlight && p.StepOf(limits, i) == step {
			return *l, true
		}
	}
	return Limit{}, false
}

// EachList calls a function with each list of limits of the policy: that of each tier, or of all
// callers, and the candidate.
func (p *Policy) EachList(each func(limits []Limit)) {
	if len(p.Tiers) == 0 {
		each(p.Limits)
	}
	for i := range p.Tiers {
		each(p.LimitsOf(i))
	}
	each(p.Candidate)
}

// Renew gives all limits of the policy the roots of a new policy.
func (p *Policy) Renew() {
	p.EachList(func(limits []Limit) { InheritSteps(limits, nil, nil, p.Steps()) })
}
