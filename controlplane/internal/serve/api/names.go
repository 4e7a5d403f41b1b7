package api

import (
	"context"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/policy"
)

// A question that names something which there is not would be answered with nothing, which reads
// like "all is well". So each name in a question is refused that is none, unless something is still
// known under it.

// noName returns the error for a name that is not in names.
func noName(what, name, lists string, names []string) error {
	return badRequest("there is no %s %q%s; %s", what, name, guessName(name, names), lists)
}

// guessName asks whether the caller meant a similar name; empty if no name is similar.
func guessName(name string, names []string) string {
	if best := policy.Guess(name, names); best != "" {
		return ": did you mean " + best + "?"
	}
	return ""
}

// guessOrList returns the result of guessName, or all names if no name is similar.
func guessOrList(name string, names []string) string {
	if text := guessName(name, names); text != "" || len(names) == 0 {
		return text
	}
	return ": it has " + strings.Join(names, ", ")
}

const (
	listsPolicies = "weir get policies lists them"
	listsTiers    = "the policy set's tiers list them"
)

func policyNames(set *policies.Compiled) (names []string) {
	if set != nil {
		for i := range set.Set.Policies {
			names = append(names, set.Set.Policies[i].Name)
		}
	}
	return names
}

// knowPolicies refuses the names of policies that are in no policy set in force. A replica that
// does not know the policy set takes them for right.
func (s *server) knowPolicies(ctx context.Context, names ...string) error {
	return s.refuseUnknown(ctx, "policy", listsPolicies, names, func(set *policies.Compiled) []string {
		return append(policyNames(set), policies.Banned)
	})
}

// knowTiers refuses unknown tiers as knowPolicies refuses unknown policies.
func (s *server) knowTiers(ctx context.Context, names ...string) error {
	return s.refuseUnknown(ctx, "tier", listsTiers, names, policyTiers)
}

// policyTiers returns the tiers of a policy set; none if there is no set.
func policyTiers(set *policies.Compiled) []string {
	if set == nil {
		return nil
	}
	return set.Set.Tiers
}

// refuseUnknown refuses names that no policy set in force has. It also knows a set that another
// replica stored a moment ago.
func (s *server) refuseUnknown(
	ctx context.Context, what, lists string, names []string, in func(*policies.Compiled) []string,
) error {
	if unknown, _ := s.findUnknown(names, in); unknown == "" {
		return nil
	}
	timed, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	_, away := s.config.Policies.Refresh(timed)
	unknown, all := s.findUnknown(names, in)
	if unknown == "" || len(all) == 0 && away != nil {
		return nil
	}
	return noName(what, unknown, lists, all)
}

// findUnknown returns the first of names that no policy set in force has, and all names in force.
func (s *server) findUnknown(names []string, in func(*policies.Compiled) []string) (unknown string, all []string) {
	active, _ := s.config.Policies.Active()
	all = slices.Concat(in(active.Current), in(active.Draft))
	for _, name := range names {
		if name != "" && !slices.Contains(all, name) {
			return name, all
		}
	}
	return "", all
}
