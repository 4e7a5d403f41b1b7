package simulate

import (
	"net/netip"
	"strings"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// keyLabel returns the partition key of a request in readable form.
func keyLabel(set *policy.Set, p *policy.Policy, a *match.Attributes, r *record) string {
	var parts []string
	for _, part := range p.Partition {
		parts = append(parts, orElse(partText(set, part, a, r), "-"))
	}
	if len(parts) == 0 {
		return "(all)"
	}
	return strings.Join(parts, " ")
}

// partText returns one part of the partition key.
func partText(set *policy.Set, part policy.Part, a *match.Attributes, r *record) string {
	switch part.Kind {
	case policy.PartClientIP:
		return addressText(set, a)
	case policy.PartMethod:
		return string(a.Method)
	case policy.PartHost:
		return string(a.Host)
	case policy.PartPath, policy.PartPolicyPath:
		return string(a.Path)
	case policy.PartTier:
		return string(r.tier)
	case policy.PartConsumer:
		for _, s := range set.Identity.Consumer {
			if s.Kind == policy.SourceClientIP {
				return addressText(set, a)
			}
			if text := sourceText(s, a, r); text != "" {
				return text
			}
		}
		return ""
	}
	kind, _ := part.Kind.Source()
	return sourceText(policy.Source{Kind: kind, Name: part.Name}, a, r)
}

// addressText returns the client's address, or its network if the policy set identifies clients by
// network; empty if it is unknown.
func addressText(set *policy.Set, a *match.Attributes) string {
	if len(a.ClientIP) == 0 {
		return ""
	}
	addr, _ := netip.AddrFromSlice(a.ClientIP)
	if addr.Is6() && set.Identity.IPv6Prefix < 128 {
		return netip.PrefixFrom(addr, set.Identity.IPv6Prefix).String()
	}
	return addr.String()
}

// sourceText returns the value of a source in one word.
func sourceText(s policy.Source, a *match.Attributes, r *record) string {
	header := func(name string) string {
		for _, h := range a.Headers {
			if h.Is(name) {
				return string(h.Value)
			}
		}
		return ""
	}
	named := func(list, separator string) string {
		for _, pair := range strings.Split(list, separator) {
			if name, value, ok := strings.Cut(strings.TrimSpace(pair), "="); ok && name == s.Name {
				return value
			}
		}
		return ""
	}
	switch s.Kind {
	case policy.SourceHeader:
		return header(s.Name)
	case policy.SourceCookie:
		return named(header("cookie"), ";")
	case policy.SourceQuery:
		return named(string(a.Query), "&")
	}
	return string(r.verified[match.PropertyPath(s)])
}
