package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/policy"
)

// GetEnforcement answers with the orders in force.
func (s *server) GetEnforcement(
	context.Context, gen.GetEnforcementRequestObject,
) (gen.GetEnforcementResponseObject, error) {
	held, durable, err := s.config.Enforcement.Held()
	if err != nil {
		return nil, err
	}
	return gen.GetEnforcement200JSONResponse{EnforcementInForceJSONResponse: s.inForce(held.Orders, durable,
		false)}, nil
}

// PutEnforcement replaces the orders.
func (s *server) PutEnforcement(
	ctx context.Context, r gen.PutEnforcementRequestObject,
) (gen.PutEnforcementResponseObject, error) {
	who := callerOf(ctx)
	change := enforcement.Change{Orders: r.Body.Orders, Entry: newEntry(ctx, "enforcement.put", "enforcement"),
		DryRun: r.Params.DryRun}
	var err error
	change.Expected, change.Any, err = ifMatch(r.Params.IfMatch)
	if err != nil {
		return nil, err
	}
	if problems := s.checkOrders(change.Orders); len(problems) > 0 {
		return nil, &failure{code: errs.InvalidEnforcement, problems: problems}
	}
	orders, durable, err := s.config.Enforcement.Put(ctx, change)
	if err != nil {
		return nil, storeFailure(explainConflict(err, enforcementChanged))
	}
	if !change.DryRun {
		s.config.Log.Warn("enforcement changed", "id", who.id, "author", who.name, "revision", orders.Revision,
			"durable", durable, "orders", describeOrders(orders.List))
	}
	return gen.PutEnforcement200JSONResponse{EnforcementInForceJSONResponse: s.inForce(orders, durable,
		change.DryRun)}, nil
}

// inForce answers with those orders that have not ended.
func (s *server) inForce(orders enforcement.Orders, durable, dryRun bool) (answer gen.EnforcementInForceJSONResponse) {
	answer.Headers.CacheControl = "no-cache"
	if tag := etag(orders.Revision); !dryRun {
		answer.Headers.ETag = &tag
	}
	now := s.config.Now()
	answer.Body = gen.Enforcement{Durable: durable, Orders: []enforcement.Order{}}
	for _, o := range orders.List {
		if o.InForce(now) {
			answer.Body.Orders = append(answer.Body.Orders, o)
		}
	}
	return answer
}

// checkOrders returns the problems of orders and fills in the defaults. An order that is in force
// already may outlive its policy, its tier and its end: it must not block other orders.
func (s *server) checkOrders(orders []enforcement.Order) (problems policy.Problems) {
	now := s.config.Now()
	held, _, _ := s.config.Enforcement.Held() // If they are not known, none stands.
	scopes := map[string]int{}
	for i := range orders {
		o := &orders[i]
		wrong := func(field, format string, args ...any) {
			problems = append(problems, policy.Problem{Path: fmt.Sprintf("orders[%d].%s", i, field),
				Reason: fmt.Sprintf(format, args...)})
		}
		if o.Percent == 0 {
			o.Percent = 100
		}
		if o.Expires != nil {
			utc := o.Expires.UTC()
			o.Expires = &utc
		}
		stands := slices.ContainsFunc(held.Orders.List, o.Same)
		if o.Expires != nil && !stands && !o.Expires.After(now) {
			wrong("expires_at", "has passed")
		}
		if why := badReason(o.Reason); why != "" {
			wrong("reason", "%s", why)
		}
		if first, twice := scopes[o.Scope()]; twice {
			wrong("state", "orders[%d] is about %s already", first, o.Scope())
		}
		scopes[o.Scope()] = i
		if !stands {
			s.checkScope(o.Policy, o.Tier, wrong)
		}
	}
	return problems
}

// checkScope refuses names that neither the policy set has nor the version that is rolled out. A
// replica that does not know the policy set takes them for right.
func (s *server) checkScope(name, tier string, wrong func(field, format string, args ...any)) {
	if current, _ := s.config.Policies.Current(); current == nil && s.config.Hub.Ready() != nil {
		return
	}
	if unknown, all := s.findUnknown([]string{name}, policyNames); unknown != "" {
		wrong("policy", "the policy set has no policy %q%s", unknown, guessName(unknown, all))
	}
	if unknown, all := s.findUnknown([]string{tier}, policyTiers); unknown != "" {
		wrong("tier", "the policy set has no tier %q%s", unknown, guessOrList(unknown, all))
	}
}

// badReason returns the problem with a reason; empty if it has none.
func badReason(reason string) string {
	switch {
	case strings.TrimSpace(reason) == "":
		return "must say why"
	case strings.ContainsFunc(reason, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "must be one line of printable text"
	}
	return ""
}

// describeOrders returns the orders in the form for the log.
func describeOrders(orders []enforcement.Order) string {
	var all []string
	for _, o := range orders {
		text := fmt.Sprintf("%s for %d %% of %s", o.State, o.Percent, o.Scope())
		if o.Expires != nil {
			text += " until " + o.Expires.Format("2006-01-02T15:04:05Z07:00")
		}
		all = append(all, text+": "+o.Reason)
	}
	return strings.Join(all, "; ")
}
