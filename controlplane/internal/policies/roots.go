package policies

import (
	"encoding/json"
	"slices"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Roots are, by the names of policies, the roots of their limits, in the document's order. Policies
// whose limits have those of a new policy are left out.
type Roots map[string][]quota.Span

// inherit gives the limits of a set the roots of those that they take the place of in the set
// before, and returns the roots. So what was used of a limit counts on wherever it stands in its
// list, and a rollback, a draft and a limit that goes over to tiers find their buckets.
func inherit(set, before *policy.Set) Roots {
	old := make(map[string]*policy.Policy, len(before.Policies))
	for i := range before.Policies {
		old[before.Policies[i].Name] = &before.Policies[i]
	}
	all := Roots{}
	for i := range set.Policies {
		p := &set.Policies[i]
		was := old[p.Name]
		if was == nil {
			continue
		}
		policy.InheritSteps(p.Candidate, was.Named(was.Candidate), p.Steps())
		for tier := range max(len(p.Tiers), 1) {
			policy.InheritSteps(p.LimitsOf(tier), was.Named(was.LimitsOf(tierBefore(set, p, tier, before))), p.Steps())
		}
		if p.Roots = rootsOf(p); p.Roots != nil {
			all[p.Name] = p.Roots
		}
	}
	return all
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
}

// Encode returns the version as stores keep it, without its document.
func (v Version) Encode() ([]byte, error) { return json.Marshal(storedVersion{v, v.Roots}) }

// DecodeVersion reads what Encode made.
func DecodeVersion(stored []byte) (Version, error) {
	var v storedVersion
	err := json.Unmarshal(stored, &v)
	v.Version.Roots = v.Roots
	return v.Version, err
}
