package policy

import "strings"

// TierLimits are the limits of one tier: Limits[From:To] of its policy. If it is empty the policy
// does not apply to the tier.
type TierLimits struct{ From, To int }

const needsTiers = "needs tiers, which names them"

// LimitsOf returns the limits of the callers of a tier, an index of Set.Tiers. A policy without
// limits by tier returns the same limits for all tiers. An empty result means that the policy does
// not apply.
func (p *Policy) LimitsOf(tier int) []Limit {
	if tier < 0 || tier >= len(p.Tiers) {
		return p.Limits
	}
	return p.Limits[p.Tiers[tier].From:p.Tiers[tier].To]
}

// readTiers reads the names of the tiers and the default tier. It comes first, because policies use
// them.
func (r *reader) readTiers(path string, doc Node, set *Set) {
	r.defaultTier = -1
	r.readField(path, doc, "tiers", func(path string, n Node) {
		r.readLongList(path, n, MaxTiers, func(path string, n Node) {
			name := r.readPolicyName(path, n)
			if containsText(set.Tiers, name) {
				r.failAt(path, "is named twice")
				return
			}
			set.Tiers = append(set.Tiers, name)
		})
		r.mustHold(path, n.Kind != List || n.listSize() > 0, "is empty: name at least one tier")
	})
	given := false
	r.readField(path, doc, "identity", func(path string, n Node) {
		r.readField(path, n, "default_tier", func(path string, n Node) {
			given = true
			if text, ok := r.readText(path, n); ok {
				r.defaultTier = r.tierIndex(path, text, set)
			}
		})
	})
	r.mustHold(r.joinPath(path, "identity.default_tier"), given || len(set.Tiers) == 0,
		"is missing: say which tier callers have of whom none is known")
	set.Identity.DefaultTier = max(r.defaultTier, 0)
}

// tierIndex finds a tier by name, -1 if there is none.
func (r *reader) tierIndex(path, name string, set *Set) int {
	for i := range set.Tiers {
		if set.Tiers[i] == name {
			return i
		}
	}
	if len(set.Tiers) == 0 {
		r.failAt(path, needsTiers)
	} else {
		r.failAt(path, "must be one of the tiers "+strings.Join(set.Tiers, ", ")+", not "+shorten(name))
	}
	return -1
}

// readMatchTiers reads the tiers that a policy is for.
func (r *reader) readMatchTiers(path string, n Node, set *Set, m *Match) {
	var named [MaxTiers]bool
	r.readLongList(path, n, MaxTiers, func(path string, n Node) {
		if text, ok := r.readText(path, n); ok {
			if tier := r.tierIndex(path, text, set); tier >= 0 {
				named[tier] = true
			}
		}
	})
	for tier := range named {
		if named[tier] {
			m.Tiers = append(m.Tiers, tier)
		}
	}
}

// readFound reads the tiers by the place of the consumer.
func (r *reader) readFound(path string, n Node, set *Set, into *[]Source) {
	if n.Kind != Map || len(n.Keys) == 0 {
		r.wrongKind(path, n, "a mapping like {client_ip: anonymous, header:x-api-key: free}")
		return
	}
	for i, key := range n.Keys {
		at := r.joinPath(path, key)
		if containsText(n.Keys[:i], key) {
			r.failAt(at, "is given twice")
		}
		if name := strings.TrimPrefix(key, "header:"); name != key {
			key = "header:" + strings.ToLower(name)
		}
		if name, ok := r.readText(at, n.Items[i]); ok && r.tierIndex(at, name, set) >= 0 {
			*into = append(*into, Source{SourceFound, key + "=" + name})
		}
	}
}

// Found splits the name of a SourceFound into the consumer's place and the tier.
func (s Source) Found() (from Source, tier string) {
	at := strings.LastIndexByte(s.Name, '=')
	kind, name, _ := strings.Cut(s.Name[:max(at, 0)], ":")
	for k := range sources {
		if word := sources[k].name; word != "" && word == kind {
			from = Source{SourceKind(k), name}
		}
	}
	return from, s.Name[at+1:]
}

func (s Source) isIn(list []Source) bool {
	for _, other := range list {
		if s == other {
			return true
		}
	}
	return false
}

// readTierSource reads one place of a tier. A header must be a header that clients cannot set:
// otherwise they would choose their own limit.
func (r *reader) readTierSource(path string, n Node, set *Set, into *[]Source) {
	// A word or a mapping with one source.
	if n.Kind == String && n.Text == "assignment" {
		*into = append(*into, Source{Kind: SourceAssignment})
		return
	}
	if n.Kind != Map {
		r.wrongKind(path, n, "{jwt: CLAIM}, {header: NAME, trusted: true}, {consumer_source: {client_ip: TIER}} or "+
			"assignment")
		return
	}
	if len(n.Keys) == 1 && n.Keys[0] == "consumer_source" {
		r.readFound(r.joinPath(path, "consumer_source"), n.Items[0], set, into)
		return
	}
	// A claim or a header, which must be trusted.
	trusted := false
	add := func(kind SourceKind) func(string, Node) {
		return func(path string, n Node) {
			if name, ok := r.readSourceName(path, n, kind); ok {
				*into = append(*into, Source{kind, name})
			}
		}
	}
	r.readMap(path, n, field{"jwt", add(SourceJWT)}, field{"header", add(SourceHeader)},
		field{"trusted", func(path string, n Node) {
			if trusted = n.Kind == Bool && n.Text == "true"; !trusted {
				r.wrongKind(path, n, "true")
			}
		}})
	header := containsText(n.Keys, "header")
	r.mustHold(path, header != containsText(n.Keys, "jwt"), "must have exactly one of jwt, header, consumer_source")
	r.mustHold(path+".trusted", !header || containsText(n.Keys, "trusted"),
		"is missing: a client can send any header; write trusted: true if "+
			"the proxy before Envoy sets this header and removes any that clients send")
	r.mustHold(path+".trusted", header || !containsText(n.Keys, "trusted"), "is for header only")
}

// readTierLimits reads the limits by tier. Each tier gets limits of its own, even a tier that is
// not named and has the limits of the default tier, because its buckets are its own.
func (r *reader) readTierLimits(path string, n Node, p *Policy, set *Set) {
	if n.Kind != Map {
		r.wrongKind(path, n, "a mapping like {free: {quota: 60, window: 1m}, premium: unlimited}")
		return
	}
	if len(set.Tiers) == 0 {
		r.failAt(path, needsTiers)
		return
	}
	own, named := make([][]Limit, len(set.Tiers)), make([]bool, len(set.Tiers))
	before := len(r.problems)
	for i, key := range n.Keys {
		at := r.joinPath(path, key)
		tier := r.tierIndex(at, key, set)
		if tier < 0 {
			continue
		}
		if named[tier] {
			r.failAt(at, "is given twice")
			continue
		}
		named[tier] = true
		if item := n.Items[i]; item.Kind != String || item.Text != "unlimited" {
			own[tier] = r.readLimits(at, item, p.Counting)
		}
	}
	if r.defaultTier < 0 {
		return // It has been reported already.
	}
	r.mustHold(path, named[r.defaultTier],
		"must have the default tier "+set.Tiers[r.defaultTier]+", whose limit tiers have that are not named")
	for tier := range own {
		if !named[tier] {
			own[tier] = own[r.defaultTier]
		}
		from := len(p.Limits)
		p.Limits = append(p.Limits, own[tier]...)
		p.Tiers = append(p.Tiers, TierLimits{from, len(p.Limits)})
	}
	r.mustHold(path, len(p.Limits) > 0 || len(r.problems) > before, "must have a limit for at least one tier")
}
