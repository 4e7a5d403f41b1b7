package policy

import "strings"

// TierLimits are the limits of one tier: Limits[From:To] of its policy. None at all: the policy does not apply to the tier.
type TierLimits struct{ From, To int }

const needsTiers = "needs tiers, which names them"

// LimitsOf are the limits that callers of a tier have, a place in Set.Tiers. A policy without limits by tier has one answer for
// all; none at all means that the policy does not apply.
func (p *Policy) LimitsOf(tier int) []Limit {
	if tier < 0 || tier >= len(p.Tiers) {
		return p.Limits
	}
	return p.Limits[p.Tiers[tier].From:p.Tiers[tier].To]
}

// tiers reads the names of the tiers and which one is the default: what policies say by tier is read by them.
func (r *reader) tiers(path string, doc Node, set *Set) {
	r.defaultTier = -1
	r.field(path, doc, "tiers", func(path string, n Node) {
		r.longList(path, n, MaxTiers, func(path string, n Node) {
			name := r.policyName(path, n)
			if contains(set.Tiers, name) {
				r.problem(path, "is named twice")
				return
			}
			set.Tiers = append(set.Tiers, name)
		})
		r.present(path, n.Kind != List || n.size() > 0, "is empty: name at least one tier")
	})
	given := false
	r.field(path, doc, "identity", func(path string, n Node) {
		r.field(path, n, "default_tier", func(path string, n Node) {
			given = true
			if text, ok := r.text(path, n); ok {
				r.defaultTier = r.tier(path, text, set)
			}
		})
	})
	r.present(r.join(path, "identity.default_tier"), given || len(set.Tiers) == 0, "is missing: say which tier callers have of whom none is known")
	set.Identity.DefaultTier = max(r.defaultTier, 0)
}

// tier finds a tier by name, -1 if there is none.
func (r *reader) tier(path, name string, set *Set) int {
	for i := range set.Tiers {
		if set.Tiers[i] == name {
			return i
		}
	}
	if len(set.Tiers) == 0 {
		r.problem(path, needsTiers)
	} else {
		r.problem(path, "must be one of the tiers "+strings.Join(set.Tiers, ", ")+", not "+shorten(name))
	}
	return -1
}

// tierSource reads one place to find a tier. A header is one that a client cannot set: who could would choose its own limit.
func (r *reader) tierSource(path string, n Node, into *[]Source) {
	if n.Kind == String && n.Text == "assignment" {
		*into = append(*into, Source{Kind: SourceAssignment})
		return
	}
	if n.Kind != Map {
		r.wrongKind(path, n, "{jwt: CLAIM}, {header: NAME, trusted: true} or assignment")
		return
	}
	trusted := false
	add := func(kind SourceKind) func(string, Node) {
		return func(path string, n Node) {
			if name, ok := r.sourceName(path, n, kind); ok {
				*into = append(*into, Source{kind, name})
			}
		}
	}
	r.object(path, n, field{"jwt", add(SourceJWT)}, field{"header", add(SourceHeader)},
		field{"trusted", func(path string, n Node) {
			if trusted = n.Kind == Bool && n.Text == "true"; !trusted {
				r.wrongKind(path, n, "true")
			}
		}})
	header := contains(n.Keys, "header")
	r.present(path, header != contains(n.Keys, "jwt"), "must have exactly one of jwt, header")
	r.present(path+".trusted", !header || contains(n.Keys, "trusted"), "is missing: a client can send any header; write trusted: true if "+
		"what stands before Envoy sets this one and removes what clients send")
	r.present(path+".trusted", header || !contains(n.Keys, "trusted"), "is for header only")
}

// tierLimits reads the limits by tier. Each tier gets its own, also one that is not named and has those of the default tier: its
// buckets are its own.
func (r *reader) tierLimits(path string, n Node, p *Policy, set *Set) {
	if n.Kind != Map {
		r.wrongKind(path, n, "a mapping like {free: {quota: 60, window: 1m}, premium: unlimited}")
		return
	}
	if len(set.Tiers) == 0 {
		r.problem(path, needsTiers)
		return
	}
	own, named := make([][]Limit, len(set.Tiers)), make([]bool, len(set.Tiers))
	before := len(r.problems)
	for i, key := range n.Keys {
		at := r.join(path, key)
		tier := r.tier(at, key, set)
		if tier < 0 {
			continue
		}
		if named[tier] {
			r.problem(at, "is given twice")
			continue
		}
		named[tier] = true
		if item := n.Items[i]; item.Kind != String || item.Text != "unlimited" {
			own[tier] = r.limits(at, item, p.Counting)
		}
	}
	if r.defaultTier < 0 {
		return // That is a problem of its own.
	}
	r.present(path, named[r.defaultTier], "must have the default tier "+set.Tiers[r.defaultTier]+", whose limit tiers have that are not named")
	for tier := range own {
		if !named[tier] {
			own[tier] = own[r.defaultTier]
		}
		from := len(p.Limits)
		p.Limits = append(p.Limits, own[tier]...)
		p.Tiers = append(p.Tiers, TierLimits{from, len(p.Limits)})
	}
	r.present(path, len(p.Limits) > 0 || len(r.problems) > before, "limit nobody: at least one tier needs a limit")
}

// String is the source as it is written in one word, like header:x-api-key.
func (s Source) String() string {
	kind := [...]string{SourceHeader: "header", SourceJWT: "jwt", SourceCookie: "cookie", SourceQuery: "query", SourceSPIFFE: "spiffe",
		SourceAssignment: "assignment"}[s.Kind]
	if s.Name == "" {
		return kind
	}
	return kind + ":" + s.Name
}
