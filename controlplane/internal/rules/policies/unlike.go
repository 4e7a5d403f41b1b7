package policies

import (
	"reflect"

	"github.com/weir-proxy/weir/shared/policy"
)

// Unlike returns the policies that decide different requests in the two sets: their shares of
// refusals cannot be compared.
func Unlike(before, after *policy.Set) map[string]bool {
	all := !reflect.DeepEqual(selectionOf(before), selectionOf(after))
	old := make(map[string]*policy.Policy, len(before.Policies))
	for i := range before.Policies {
		old[before.Policies[i].Name] = &before.Policies[i]
	}
	unlike := map[string]bool{}
	for i := range after.Policies {
		is := &after.Policies[i]
		if was := old[is.Name]; was != nil && (all || areUnlike(was, is)) {
			unlike[is.Name] = true
		}
	}
	return unlike
}

// selectionOf returns the settings of a set that select the requests of policies.
func selectionOf(s *policy.Set) []any {
	return []any{s.Identity, s.Tiers, s.Exempt, s.Banned, s.Routing}
}

// Unlike returns the policies that decide different requests in the versions in force.
func (a Active) Unlike() map[string]bool {
	if a.Current == nil || a.Draft == nil {
		return nil
	}
	return Unlike(a.Current.Set, a.Draft.Set)
}

func areUnlike(was, is *policy.Policy) bool {
	skips := was.IfAbsent == policy.AbsentSkip || is.IfAbsent == policy.AbsentSkip
	return !reflect.DeepEqual(was.Match, is.Match) ||
		skips && (was.IfAbsent != is.IfAbsent || !reflect.DeepEqual(was.Partition, is.Partition)) ||
		!reflect.DeepEqual(tiersWithout(was), tiersWithout(is))
}

// tiersWithout returns the tiers to which a policy does not apply.
func tiersWithout(p *policy.Policy) (without []int) {
	for tier := range p.Tiers {
		if len(p.LimitsOf(tier)) == 0 {
			without = append(without, tier)
		}
	}
	return without
}
