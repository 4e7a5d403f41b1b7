package promises

import (
	"reflect"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/shared/policy"
)

// openNote names the requests that match the policy but are limited by no policy at all, because
// they lack a part of the partition. It returns the empty string if there are none. It prefers a
// needless note: another policy counts only if it certainly covers all of these requests.
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
		describeRoute(&p.Match) + "; add one by client_ip, or say if_absent: deny or shared"
}

// limits reports whether a policy refuses requests, even if only for a share of its keys.
func limits(p *policy.Policy) bool {
	return p.Enforced > policy.EnforcedShadow && p.Enforced <= policy.EnforcedAll
}

// mayLack reports whether a request that the policy matches can lack the part.
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

// asksFor reports whether every request that matches has the header.
func asksFor(m *policy.Match, header string) bool {
	return slices.ContainsFunc(m.Headers, func(h policy.HeaderMatch) bool {
		return h.Name == header && h.Op != policy.HeaderAbsent
	})
}

// isBehind reports whether another policy limits every request that the policy matches and that
// lacks the part. That policy must be enforced for at least as large a share of its keys.
func isBehind(p *policy.Policy, part string, set *policy.Set) bool {
	return slices.ContainsFunc(set.Policies, func(other policy.Policy) bool {
		if other.Name == p.Name || !limits(&other) || other.Enforced < p.Enforced ||
			!covers(&other.Match, &p.Match, absentHeaders(part, set)) {
			return false
		}
		return other.IfAbsent != policy.AbsentSkip ||
			!slices.ContainsFunc(other.Partition, func(one policy.Part) bool { return mayLack(&other, one, set) })
	})
}

// absentHeaders returns the headers that a request does not have if it lacks the part.
func absentHeaders(part string, set *policy.Set) (headers []string) {
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

// covers reports whether m matches every request that other matches and that lacks the headers.
func covers(m, other *policy.Match, lacking []string) bool {
	headers := slices.DeleteFunc(slices.Clone(m.Headers), func(h policy.HeaderMatch) bool {
		return h.Op == policy.HeaderAbsent && slices.Contains(lacking, h.Name) || slices.Contains(other.Headers, h)
	})
	return len(headers) == 0 && !m.IsOfCalls() &&
		(len(m.ClientIPs) == 0 || reflect.DeepEqual(m.ClientIPs, other.ClientIPs)) &&
		(len(m.Tiers) == 0 || reflect.DeepEqual(m.Tiers, other.Tiers)) &&
		coversAll(m.Methods, other.Methods, func(a, b string) bool { return a == b }) &&
		coversAll(m.Hosts, other.Hosts, coversHost) && coversAll(m.Paths, other.Paths, coversPath)
}

// coversAll reports whether each pattern of some is covered by a pattern of list. An empty list
// covers every pattern.
func coversAll(list, some []string, covers func(a, b string) bool) bool {
	if len(list) == 0 {
		return true
	}
	return len(some) > 0 && !slices.ContainsFunc(some, func(b string) bool {
		return !slices.ContainsFunc(list, func(a string) bool { return covers(a, b) })
	})
}

// coversHost reports whether every host that matches b also matches a.
func coversHost(a, b string) bool {
	suffix, wild := strings.CutPrefix(a, "*")
	return a == b || wild && strings.HasSuffix(b, suffix) && !strings.HasPrefix(b, "*")
}

// coversPath reports whether every path that matches b also matches a.
func coversPath(a, b string) bool {
	below, all := strings.CutSuffix(a, "/**")
	return a == b || all && (b == below || strings.HasPrefix(b, below+"/")) && !strings.Contains(below, "{")
}

// describeRoute describes in words which requests a match selects.
func describeRoute(m *policy.Match) string {
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
