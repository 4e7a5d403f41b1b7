package policies

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Roots has the roots of the limits of each policy, by its name, in the order of the document. It
// leaves out policies whose roots are the roots of a new policy.
type Roots map[string][]quota.Span

// Gone has limits that are in no list any more but whose use may still count, by the name of the
// policy. If such a limit is added again, it continues with this use.
type Gone map[string][]GoneLimit

// GoneLimit is a limit that was taken out of the lists of a policy.
type GoneLimit struct {
	Root   quota.Span `json:"root"`
	Window quota.Span `json:"window"`
	// Candidate is true for a limit of the policy's candidate.
	Candidate bool `json:"candidate,omitempty"`
	// Until is the time from which no use of the limit counts any more.
	Until time.Time `json:"until"`
}

const (
	// mostGone is the maximum number of gone limits in a version, which keeps the limits that
	// count longest.
	mostGone = 1024
	// leasedAtMost is the longest time in which leased tokens can be used after their limit was
	// removed.
	leasedAtMost = time.Minute
)

// inherit gives each limit of a set the root of the limit that it replaces in the set before, or of
// a limit that is gone. It returns the roots, and the limits that are gone now. So the use of a
// limit still counts if the limit moves in its list; and after a rollback, in a draft, and with new
// tiers limits find their buckets.
func inherit(set, before *policy.Set, gone Gone, now time.Time) (Roots, Gone) {
	// Find the old policies by their names.
	old := make(map[string]*policy.Policy, len(before.Policies))
	for i := range before.Policies {
		old[before.Policies[i].Name] = &before.Policies[i]
	}
	all := Roots{}
	for i := range set.Policies {
		p := &set.Policies[i]
		was := old[p.Name]
		if was == nil {
			was = &policy.Policy{}
		}
		// The candidates inherit from the old candidates.
		policy.InheritSteps(p.Candidate, was.Named(was.Candidate), limitsOf(gone[p.Name], true), p.Steps())
		// The limits of each tier inherit from the old limits of that tier; the default tier is
		// first.
		others := append(slices.Clone(was.Limits), limitsOf(gone[p.Name], false)...)
		fresh, first := len(others) == 0, p.LimitsOf(set.Identity.DefaultTier)
		for n := range max(len(p.Tiers), 1) {
			tier := (set.Identity.DefaultTier + n) % max(len(p.Tiers), 1)
			list := was.Named(was.LimitsOf(tierBefore(set, p, tier, before)))
			if fresh && n > 0 {
				list = p.Named(first)
			}
			policy.InheritSteps(p.LimitsOf(tier), list, others, p.Steps())
			others = append(others, p.LimitsOf(tier)...)
		}
		if p.Roots = rootsOf(p); p.Roots != nil {
			all[p.Name] = p.Roots
		}
	}
	return all, findGone(set, before, gone, now)
}

// limitsOf returns the gone limits of a policy as a list of limits.
func limitsOf(gone []GoneLimit, candidate bool) (limits []policy.Limit) {
	for _, g := range gone {
		if g.Candidate == candidate {
			limits = append(limits, policy.Limit{Root: g.Root, Window: g.Window})
		}
	}
	return limits
}

// goneKey identifies a limit that is gone.
type goneKey struct {
	policy       string
	candidate    bool
	root, window quota.Span
}

// findGone returns the limits that are gone after a set has replaced another set: the limits that
// were gone before, and the old limits without a successor in their list.
func findGone(set, before *policy.Set, gone Gone, now time.Time) Gone {
	live, all := map[goneKey]bool{}, map[goneKey]time.Time{}
	// Collect the limits of the new set.
	after := make(map[string]*policy.Policy, len(set.Policies))
	for i := range set.Policies {
		p := &set.Policies[i]
		after[p.Name] = p
		for n, list := range [][]policy.Limit{p.Limits, p.Candidate} {
			for _, l := range list {
				live[goneKey{p.Name, n > 0, l.Root, l.Window}] = true
			}
		}
	}
	add := func(k goneKey, until time.Time) {
		if !live[k] && until.After(now) && until.After(all[k]) {
			all[k] = until
		}
	}
	// Add old limits without a successor.
	for i := range before.Policies {
		was := &before.Policies[i]
		p := after[was.Name]
		if p == nil {
			p = &policy.Policy{}
		}
		lose := func(list, next []policy.Limit, candidate bool) {
			for _, l := range list {
				next := slices.ContainsFunc(next, func(o policy.Limit) bool { return !o.InFlight && o.Root == l.Root })
				if !l.InFlight && !next {
					add(goneKey{was.Name, candidate, l.Root, l.Window}, now.Add(countsFor(&l)))
				}
			}
		}
		lose(was.Candidate, p.Candidate, true)
		for tier := range max(len(was.Tiers), 1) {
			lose(was.LimitsOf(tier), p.LimitsOf(tierBefore(before, was, tier, set)), false)
		}
	}
	// Add the limits that were gone before.
	for name, list := range gone {
		for _, g := range list {
			add(goneKey{name, g.Candidate, g.Root, g.Window}, g.Until)
		}
	}
	return keepLongest(all)
}

// keepLongest returns the gone limits that count longest, at most mostGone.
func keepLongest(all map[goneKey]time.Time) Gone {
	keys := slices.SortedFunc(maps.Keys(all), func(a, b goneKey) int {
		return cmp.Or(all[b].Compare(all[a]), cmp.Compare(a.policy, b.policy), cmp.Compare(a.root, b.root),
			cmp.Compare(a.window, b.window))
	})
	left := Gone{}
	for _, k := range keys[:min(len(keys), mostGone)] {
		left[k.policy] = append(left[k.policy], GoneLimit{k.root, k.window, k.candidate, all[k]})
	}
	return left
}

// countsFor returns the longest time in which use of a limit counts: two windows of a counter, or
// the time in which a bucket fills.
func countsFor(l *policy.Limit) time.Duration {
	windows := int64(2)
	if l.Quota > 0 {
		windows = max(windows, 2*l.Params.Burst/l.Quota)
	}
	windows = min(windows, int64(quota.MaxWindow/l.Window)+2)
	return time.Duration(windows*int64(l.Window))*time.Microsecond + leasedAtMost
}

// tierBefore returns the index of a policy's tier in the set before; the default tier if there was
// no such tier, or if the policy's limits do not differ by tier.
func tierBefore(set *policy.Set, p *policy.Policy, tier int, before *policy.Set) int {
	if len(p.Tiers) > 0 {
		if at := slices.Index(before.Tiers, set.Tiers[tier]); at >= 0 {
			return at
		}
	}
	return before.Identity.DefaultTier
}

// rootsOf returns the roots of all limits of a policy; nil if they are the roots of a new policy.
func rootsOf(p *policy.Policy) (roots []quota.Span) {
	fresh := renewed(*p)
	p.EachList(func(limits []policy.Limit) {
		for _, l := range limits {
			roots = append(roots, l.Root)
		}
	})
	if slices.Equal(p.Limits, fresh.Limits) && slices.Equal(p.Candidate, fresh.Candidate) {
		return nil
	}
	return roots
}

// setRoots gives the limits of a set their stored roots.
func setRoots(set *policy.Set, stored Roots) {
	for i := range set.Policies {
		p := &set.Policies[i]
		roots := stored[p.Name]
		if len(roots) != len(p.Limits)+len(p.Candidate) {
			continue
		}
		p.Roots = roots
		p.EachList(func(limits []policy.Limit) {
			for n := range limits {
				limits[n].Root, roots = roots[0], roots[1:]
			}
		})
	}
}

// renewed returns a policy with the roots of a new policy.
func renewed(p policy.Policy) policy.Policy {
	p.Limits, p.Candidate, p.Roots = slices.Clone(p.Limits), slices.Clone(p.Candidate), nil
	p.Renew()
	return p
}

// storedVersion is the stored form of a version, without its document.
type storedVersion struct {
	Version
	Roots Roots `json:"roots,omitempty"`
	Gone  Gone  `json:"gone,omitempty"`
}

// Encode returns the stored form of the version, without its document.
func (v Version) Encode() ([]byte, error) { return json.Marshal(storedVersion{v, v.Roots, v.Gone}) }

// DecodeVersion decodes the result of Encode.
func DecodeVersion(stored []byte) (Version, error) {
	var v storedVersion
	err := json.Unmarshal(stored, &v)
	v.Version.Roots, v.Version.Gone = v.Roots, v.Gone
	return v.Version, err
}
