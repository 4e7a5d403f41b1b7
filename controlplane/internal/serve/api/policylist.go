package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/promises"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/policy"
)

// ListPolicies lists the policies in force, with their enforcement.
func (s *server) ListPolicies(
	_ context.Context, r gen.ListPoliciesRequestObject,
) (gen.ListPoliciesResponseObject, error) {
	size, token, err := readPage(r.Params.PageSize, r.Params.PageToken)
	if err != nil {
		return nil, err
	}
	answer := gen.ListPolicies200JSONResponse{Policies: []gen.PolicyInForce{}}
	current, _ := s.config.Policies.Current()
	if current == nil {
		return answer, s.unreadError()
	}
	answer.Version = current.Version.Number
	orders := ordersOver(s.config.Enforcement, s.config.Now())
	unmet, unmetSince := s.config.Series.Unmet(policyNames(current), current.Version.Time)
	all := s.listPolicies()
	begin, err := indexAfter(all, token)
	if err != nil {
		return nil, err
	}
	last := ""
	for i, one := range all {
		p := one.policy
		state, percent, ordered := orders.enforcementOf(p)
		if !containsFold(p.Name, r.Params.Search) || r.Params.Mode != "" && string(r.Params.Mode) != p.Mode.String() ||
			r.Params.State != "" && string(r.Params.State) != string(state) {
			continue
		}
		answer.Found++
		switch {
		case i < begin:
		case len(answer.Policies) < size:
			last = fmt.Sprint(i, " ", one.id())
			answered := gen.PolicyInForce{
				Name: p.Name, Version: one.version, Mode: gen.PolicyInForceMode(p.Mode.String()),
				Algorithm: p.Counting.Algorithm.String(),
				Limits:    append([]promises.Limit{}, promises.LimitsOf(*p, one.by.Set.Tiers)...),
				Partition: partNames(p),
				State:     gen.PolicyInForceState(state), Percent: percent, Ordered: ordered,
			}
			if from := unmetSince.UTC(); unmet[p.Name] && state != enforcement.Off {
				answered.UnmetSince = &from
			}
			answer.Policies = append(answer.Policies, answered)
		default: // There is another page.
			answer.Next = pageToken(last)
		}
	}
	return answer, nil
}

// listedPolicy is a policy in force.
type listedPolicy struct {
	by     *policies.Compiled
	policy *policy.Policy
	// version is the only version with this policy; 0 if all versions in force have it.
	version uint64
}

// id distinguishes the policies of a list.
func (l listedPolicy) id() string {
	if l.version == 0 {
		return l.policy.Name
	}
	return fmt.Sprint(l.policy.Name, " ", l.version)
}

// listPolicies returns the policies in force. A policy that a rollout changes is in it twice.
func (s *server) listPolicies() (all []listedPolicy) {
	active, _ := s.config.Policies.Active()
	differs := map[string]bool{}
	if active.Draft != nil {
		diff := policies.Compare(active.Current.Set, active.Draft.Set)
		for _, name := range slices.Concat(diff.Added, diff.Removed, diff.Changed) {
			differs[name] = true
		}
	}
	for _, by := range []*policies.Compiled{active.Current, active.Draft} {
		for i := 0; by != nil && i < len(by.Set.Policies); i++ {
			one := listedPolicy{by: by, policy: &by.Set.Policies[i]}
			if differs[one.policy.Name] {
				one.version = by.Version.Number
			} else if by == active.Draft {
				continue
			}
			all = append(all, one)
		}
	}
	return all
}

// indexAfter returns the index where a list continues after the policy of a token: behind the
// policy's present place, or at its old place if it is gone.
func indexAfter(all []listedPolicy, token string) (begin int, err error) {
	if token == "" {
		return 0, nil
	}
	at, id, _ := strings.Cut(token, " ")
	begin, err = strconv.Atoi(at)
	if err != nil || begin < 0 {
		return 0, errToken
	}
	if now := slices.IndexFunc(all, func(l listedPolicy) bool { return l.id() == id }); now >= 0 {
		return now + 1, nil
	}
	return begin, nil
}

func partNames(p *policy.Policy) []string {
	names := []string{}
	for _, part := range p.Partition {
		names = append(names, part.String())
	}
	return names
}

// orders are the orders about whole policies, by the policy's name; an empty name is all policies.
type orders map[string]enforcement.Order

// ordersOver returns the orders in force; none while they are not known.
func ordersOver(of *enforcement.Service, now time.Time) orders {
	found := orders{}
	held, _, err := of.Held()
	if err != nil {
		return found
	}
	for _, o := range held.Orders.List {
		if o.Tier == "" && o.InForce(now) {
			found[o.Policy] = o
		}
	}
	return found
}

// enforcementOf returns the state of a policy, and the share of its keys, in percent, that have
// this state; 0 means all keys. ordered is true if an order decides.
func (all orders) enforcementOf(p *policy.Policy) (state enforcement.State, percent int, ordered bool) {
	o, ordered := all[p.Name]
	if !ordered {
		o, ordered = all[""]
	}
	if ordered {
		return o.State, cmp.Or(o.Percent, 100) % 100, true
	}
	switch p.Enforced {
	case policy.EnforcedShadow:
		return enforcement.Shadow, 0, false
	case policy.EnforcedOff:
		return enforcement.Off, 0, false
	}
	return enforcement.Enforce, int(p.Enforced) % 100, false
}
