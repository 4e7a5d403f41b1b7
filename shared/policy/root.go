package policy

import "github.com/weir-proxy/weir/shared/quota"

// Inherit sets the Root of each limit of a list. A limit takes the root of the limit that it
// replaces among the limits before, so that the used tokens of that limit still count. It replaces
// the limit with the same window; limits without such a limit replace, one after another, the limit
// with the nearest window. A new limit takes the root of the limit with its window among others,
// which were in the list once or are in the lists of other tiers. If there is none, it gets a free
// root: 0 for the longest window, otherwise its window. Without limits before and others, a list
// therefore has the same buckets in any order.
func Inherit(limits, before, others []Limit) {
	done := takeSame(limits, before, 0)
	done = takeNearest(limits, before, done)
	for i := longestLimit(limits, done); i >= 0; i = longestLimit(limits, done) {
		limits[i].Root = newRoot(&limits[i], limits, others, done)
		done |= 1 << i
	}
}

// InheritOwn sets the Root of a consumer's own limits. They take the roots of the policy's limits
// with the same windows, then the roots of the consumer's own list before, and then the roots of
// the policy's limits with the nearest windows. Further limits get the first free roots, which are
// below the shortest window. So lists that come and go have no more buckets than limits.
func InheritOwn(limits, of, before []Limit) {
	done := takeSame(limits, of, 0)
	done = takeSame(limits, before, done)
	done = takeNearest(limits, before, done)
	done = takeNearest(limits, of, done)
	for i := longestLimit(limits, done); i >= 0; i = longestLimit(limits, done) {
		root := quota.Span(1)
		for hasRoot(limits, done, root) {
			root++
		}
		limits[i].Root = root
		done |= 1 << i
	}
}

// takeSame gives limits that are not done the roots of limits before with the same windows.
// takeNearest does the same for the nearest windows. They return the set of limits that are done.
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
		i, j := nearestPair(limits, before, done)
		if j < 0 {
			return done
		}
		limits[i].Root = before[j].Root
		done |= 1 << i
	}
}

// newRoot returns the root of a limit that replaces no other limit.
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

// sameWindow returns the first limit of a list with the window of a limit; nil if there is none.
func sameWindow(l *Limit, list []Limit) *Limit {
	for i := range list {
		if !l.InFlight && !list[i].InFlight && l.Window == list[i].Window {
			return &list[i]
		}
	}
	return nil
}

// nearestPair finds a limit that is not done, and a limit before whose root is free, with the least
// ratio of their windows; of several pairs the longest. It returns -1 if there are none.
func nearestPair(limits, before []Limit, done uint) (limit, was int) {
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

// longestLimit returns the limit with the longest window among the limits that are not done; -1 if
// all are.
func longestLimit(limits []Limit, done uint) int {
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

// InheritSteps is Inherit for a list that has each limit once for each of steps steps: see
// Policy.Steps. before are the limits that the document named then.
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

// StepOf returns the step of the n-th limit of a list of the policy: see Steps.
func (p *Policy) StepOf(limits []Limit, n int) int { return n / max(len(limits)/p.Steps(), 1) }

// Find returns the limit in a list of the policy, at a step, that has the buckets of a limit. That
// limit is from the same list at another time. It reports false if there is none.
func (p *Policy) Find(limits []Limit, like *Limit, step int) (Limit, bool) {
	for i := range limits {
		if l := &limits[i]; l.Root == like.Root && l.InFlight == like.InFlight && p.StepOf(limits, i) == step {
			return *l, true
		}
	}
	return Limit{}, false
}

// EachList calls a function with each list of limits of the policy: the list of each tier, or of
// all callers, and the candidate.
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
