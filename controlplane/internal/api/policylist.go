package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/api/gen"
	"github.com/weir-proxy/weir/controlplane/internal/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/promises"
	"github.com/weir-proxy/weir/shared/policy"
)

// ListPolicies lists the policies in force with what enforces them.
func (s *server) ListPolicies(
	_ context.Context, r gen.ListPoliciesRequestObject,
) (gen.ListPoliciesResponseObject, error) {
	size, token, err := page(r.Params.PageSize, r.Params.PageToken)
	if err != nil {
		return nil, err
	}
	answer := gen.ListPolicies200JSONResponse{Policies: []gen.PolicyInForce{}}
	current, _ := s.config.Policies.Current()
	if current == nil {
		return answer, s.unread()
	}
	answer.Version = current.Version.Number
	orders := ordersOver(s.config.Enforcement, s.config.Now())
	unmet, unmetSince := s.config.Series.Unmet(policyNames(current), current.Version.Time)
	begin, err := following(current.Set.Policies, token)
	if err != nil {
		return nil, err
	}
	last := ""
	for i := range current.Set.Policies {
		p := &current.Set.Policies[i]
		state, percent, ordered := orders.of(p)
		if !has(p.Name, r.Params.Search) || r.Params.Mode != "" && string(r.Params.Mode) != p.Mode.String() ||
			r.Params.State != "" && string(r.Params.State) != string(state) {
			continue
		}
		answer.Found++
		switch {
		case i < begin:
		case len(answer.Policies) < size:
			last = fmt.Sprint(i, " ", p.Name)
			one := gen.PolicyInForce{
				Name: p.Name, Mode: gen.PolicyInForceMode(p.Mode.String()), Algorithm: p.Counting.Algorithm.String(),
				Limits: append([]promises.Limit{}, promises.LimitsOf(*p, current.Set.Tiers)...), Partition: parts(p),
				State: gen.PolicyInForceState(state), Percent: percent, Ordered: ordered,
			}
			if from := unmetSince.UTC(); unmet[p.Name] && state != enforcement.Off {
				one.UnmetSince = &from
			}
			answer.Policies = append(answer.Policies, one)
		default: // There is another page.
			answer.Next = pageToken(last)
		}
	}
	return answer, nil
}

// following is where a list goes on after the policy that a token names: behind it, wherever it is
// by now, or where it was if it is gone.
func following(all []policy.Policy, token string) (begin int, err error) {
	if token == "" {
		return 0, nil
	}
	at, name, _ := strings.Cut(token, " ")
	begin, err = strconv.Atoi(at)
	if err != nil || begin < 0 {
		return 0, errToken
	}
	if now := slices.IndexFunc(all, func(p policy.Policy) bool { return p.Name == name }); now >= 0 {
		return now + 1, nil
	}
	return begin, nil
}

func parts(p *policy.Policy) []string {
	names := []string{}
	for _, part := range p.Partition {
		names = append(names, part.String())
	}
	return names
}

// orders are those about whole policies, by the policy's name; an empty name is all policies.
type orders map[string]enforcement.Order

// ordersOver reads the orders in force. While they are not known there are none.
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

// of says how a policy is enforced, and the share of its keys of which that holds, 0 for all.
func (all orders) of(p *policy.Policy) (state enforcement.State, percent int, ordered bool) {
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
