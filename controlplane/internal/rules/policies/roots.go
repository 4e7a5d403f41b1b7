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

// Roots are, by the names of policies, the roots of their limits, in the document's order. Policies
// whose limits have those of a new policy are left out.
type Roots map[string][]quota.Span

// Gone are, by the names of policies, limits that stand in no list any more and whose use may still
// count. One that comes back finds it.
type Gone map[string][]GoneLimit

// GoneLimit is a limit that was taken out of the lists of a policy.
type GoneLimit struct {
	Root   quota.Span `json:"root"`
	Window quota.Span `json:"window"`
	// Candidate: it was one of the policy's candidate.
	Candidate bool `json:"candidate,omitempty"`
	// Until is when nothing that was used of it counts any more.
	Until time.Time `json:"until"`
}

const (
	// mostGone is how many limits that are gone a version keeps in mind: those that end last.
	mostGone = 1024
	// leasedAtMost is how long tokens can be in use that were leased when a limit was taken out.
	leasedAtMost = time.Minute
)

// inherit gives the limits of a set the roots of those that they take the place of in the set
// before, or of those that are gone. It returns the roots and what is gone now. So what was used of
// a limit counts on wherever it stands in its list, and a rollback, a draft and a limit that goes
// over to tiers find their buckets.
func inherit(set, before *policy.Set, gone Gone, now time.Time) (Roots, Gone) {
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
		policy.InheritSteps(p.Candidate, was.Named(was.Candidate), limitsOf(gone[p.Name], true), p.Steps())
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
	return all, leave(set, before, gone, now)
}

// limitsOf returns limits of a policy that are gone, as those of a list.
func limitsOf(gone []GoneLimit, candidate bool) (limits []policy.Limit) {
	for _, g := range gone {
		if g.Candidate == candidate {
			limits = append(limits, policy.Limit{Root: g.Root, Window: g.Window})
		}
	}
	return limits
}

// goneKey is one of the limits that are gone.
type goneKey struct {
	policy       string
	candidate    bool
	root, window quota.Span
}

// leave returns what is gone once a set takes the place of another: what was, and what of the set
// before has no successor in its list.
func leave(set, before *policy.Set, gone Gone, now time.Time) Gone {
	live, all := map[goneKey]bool{}, map[goneKey]time.Time{}
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
	for name, list := range gone {
		for _, g := range list {
			add(goneKey{name, g.Candidate, g.Root, g.Window}, g.Until)
		}
	}
	return newest(all)
}

// newest are the limits that are gone and count for longest.
func newest(all map[goneKey]time.Time) Gone {
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

// countsFor is how long at most counts what was used of a limit: two windows of a counter, and the
// time in which a bucket fills.
func countsFor(l *policy.Limit) time.Duration {
	windows := int64(2)
	if l.Quota > 0 {
		windows = max(windows, 2*l.Params.Burst/l.Quota)
	}
	windows = min(windows, int64(quota.MaxWindow/l.Window)+2)
	return time.Duration(windows*int64(l.Window))*time.Microsecond + leasedAtMost
}

// tierBefore returns the index in the set before of a policy's tier; the default tier's if there
// was none, or if the policy's limits do not go by tier.
func tierBefore(set *policy.Set, p *policy.Policy, tier int, before *policy.Set) int {
	if len(p.Tiers) > 0 {
		if at := slices.Index(before.Tiers, set.Tiers[tier]); at >= 0 {
			return at
		}
	}
	return before.Identity.DefaultTier
}

// rootsOf returns the roots of all limits of a policy; nil if they are those of a new policy.
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

// setRoots gives the limits of a set the roots that were stored with it.
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

// renewed is a policy with the roots of a new one.
func renewed(p policy.Policy) policy.Policy {
	p.Limits, p.Candidate, p.Roots = slices.Clone(p.Limits), slices.Clone(p.Candidate), nil
	p.Renew()
	return p
}

// storedVersion is a version as stores keep it, beside its document.
type storedVersion struct {
	Version
	Roots Roots `json:"roots,omitempty"`
	Gone  Gone  `json:"gone,omitempty"`
}

// Encode returns the version as stores keep it, without its document.
func (v Version) Encode() ([]byte, error) { return json.Marshal(storedVersion{v, v.Roots, v.Gone}) }

// DecodeVersion reads what Encode made.
func DecodeVersion(stored []byte) (Version, error) {
	var v storedVersion
	err := json.Unmarshal(stored, &v)
	v.Version.Roots, v.Version.Gone = v.Roots, v.Gone
	return v.Version, err
}
