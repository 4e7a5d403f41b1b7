package promises

import (
	"reflect"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/shared/policy"
)

// openNote says which requests that the policy matches no policy limits, because they lack a part
// of its partition; empty if there are none. It is cautious: a policy behind it counts only if it
// covers all of them for certain.
func openNote(p *policy.Policy, set *policy.Set) string {
	if p.IfAbsent != policy.AbsentSkip || !limits(p) || p.Match.IsOfCalls() {
		return ""
	}
	var lacking []string
	for _, part := range p.Partition {
		if mayLack(p, part, set) && !slices.Contains(lacking, part.String()) {
			lacking = append(lacking, part.String())
		}
	}
	for i := 0; i < len(lacking); i++ {
		if isBehind(p, lacking[i], set) {
			lacking = slices.Delete(lacking, i, i+1)
			i--
		}
	}
	if len(lacking) == 0 {
		return ""
	}
	return "unlimited without " + strings.Join(lacking, " or ") + ": no other policy limits such requests to " +
		route(&p.Match) + "; add one by client_ip, or say if_absent: deny or shared"
}

// limits reports whether a policy refuses requests, be it of a share of the keys.
func limits(p *policy.Policy) bool {
	return p.Enforced > policy.EnforcedShadow && p.Enforced <= policy.EnforcedAll
}

// mayLack reports whether a request that the policy matches can lack a part.
func mayLack(p *policy.Policy, part policy.Part, set *policy.Set) bool {
	switch part.Kind {
	case policy.PartConsumer:
		return !slices.ContainsFunc(set.Identity.Consumer, func(s policy.Source) bool {
			return s.Kind == policy.SourceClientIP || s.Kind == policy.SourceHeader && asksFor(&p.Match, s.Name)
		})
	case policy.PartHeader:
		return !asksFor(&p.Match, part.Name)
	}
	_, isSource := part.Kind.Source()
	return isSource
}

// asksFor reports whether requests that match have a header.
func asksFor(m *policy.Match, header string) bool {
	return slices.ContainsFunc(m.Headers, func(h policy.HeaderMatch) bool {
		return h.Name == header && h.Op != policy.HeaderAbsent
	})
}

// isBehind reports whether another policy limits all requests that a policy matches and that lack a
// part, for as large a share of the keys at least.
func isBehind(p *policy.Policy, part string, set *policy.Set) bool {
	return slices.ContainsFunc(set.Policies, func(other policy.Policy) bool {
		if other.Name == p.Name || !limits(&other) || other.Enforced < p.Enforced ||
			!covers(&other.Match, &p.Match, absent(part, set)) {
			return false
		}
		return other.IfAbsent != policy.AbsentSkip ||
			!slices.ContainsFunc(other.Partition, func(one policy.Part) bool { return mayLack(&other, one, set) })
	})
}

// absent are the headers that requests do not have which lack a part.
func absent(part string, set *policy.Set) (headers []string) {
	if header, ok := strings.CutPrefix(part, "header:"); ok {
		return []string{header}
	}
	if part != "consumer" {
		return nil
	}
	for _, s := range set.Identity.Consumer {
		if s.Kind == policy.SourceHeader {
			headers = append(headers, s.Name)
		}
	}
	return headers
}

// covers reports whether a match holds for all requests for which another one does and that lack
// these headers.
func covers(m, other *policy.Match, lacking []string) bool {
	headers := slices.DeleteFunc(slices.Clone(m.Headers), func(h policy.HeaderMatch) bool {
		return h.Op == policy.HeaderAbsent && slices.Contains(lacking, h.Name) || slices.Contains(other.Headers, h)
	})
	return len(headers) == 0 && !m.IsOfCalls() &&
		(len(m.ClientIPs) == 0 || reflect.DeepEqual(m.ClientIPs, other.ClientIPs)) &&
		(len(m.Tiers) == 0 || reflect.DeepEqual(m.Tiers, other.Tiers)) &&
		all(m.Methods, other.Methods, func(a, b string) bool { return a == b }) &&
		all(m.Hosts, other.Hosts, coversHost) && all(m.Paths, other.Paths, coversPath)
}

// all reports whether each of some patterns is covered by one of a list; an empty list covers all.
func all(list, some []string, covers func(a, b string) bool) bool {
	if len(list) == 0 {
		return true
	}
	return len(some) > 0 && !slices.ContainsFunc(some, func(b string) bool {
		return !slices.ContainsFunc(list, func(a string) bool { return covers(a, b) })
	})
}

func coversHost(a, b string) bool {
	suffix, wild := strings.CutPrefix(a, "*")
	return a == b || wild && strings.HasSuffix(b, suffix) && !strings.HasPrefix(b, "*")
}

func coversPath(a, b string) bool {
	below, all := strings.CutSuffix(a, "/**")
	return a == b || all && (b == below || strings.HasPrefix(b, below+"/")) && !strings.Contains(below, "{")
}

// route is what a match is about, in words.
func route(m *policy.Match) string {
	text := "all paths"
	if len(m.Paths) > 0 {
		text = strings.Join(m.Paths, ", ")
	}
	if len(m.Methods) > 0 {
		text = strings.Join(m.Methods, " and ") + " of " + text
	}
	if len(m.Hosts) > 0 {
		text += " at " + strings.Join(m.Hosts, ", ")
	}
	return text
}
