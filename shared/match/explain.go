package match

import (
	"bytes"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Whose identifies the caller of a request for a policy.
type Whose struct {
	// Policy is the index of the policy in the policy set.
	Policy uint32
	// Values are the request's values for the parts of the partition. Key is the hash of the
	// partition key, as in bans.
	Values []Value
	Key    keyhash.Key
	// Tier is the caller's tier, for Index.Tier, if the policy depends on the tier; 0 if it does
	// not.
	Tier uint8
}

// Whose returns, for each policy whose conditions a request meets, the caller of the request.
// Unlike Match it allocates memory, since people ask, and not requests. It ignores the checks
// before the policies, and policies that are off in the set and that no operator has switched on.
func (m *Matcher) Whose(ix *Index, a *Attributes) (all []Whose) {
	m.resetCollector(ix, a)
	found := m.findMatches(a)
	found, m.classMatches = cutClasses(found)
	for _, one := range found {
		p := &ix.policies[one.policy]
		if !m.isApplicable(p, a) {
			continue
		}
		who := Whose{Policy: one.policy}
		if p.needsTier {
			who.Tier = uint8(m.tier) + 1
		}
		m.putPartition(p, one.pattern, a)
		who.Key = m.hashKey()
		for _, part := range ix.parts[p.parts.from:p.parts.to] {
			who.Values = append(who.Values, m.valueOf(part, one.pattern, a))
		}
		all = append(all, who)
	}
	return all
}

// valueOf returns the request's value for a part of a partition. Several values become one, with
// commas.
func (c *caller) valueOf(part part, pattern wire.Ref, a *Attributes) (v Value) {
	// Parts that the request or the policy has themselves.
	place := part.source
	switch part.kind {
	case policy.PartPolicyPath:
		if v.Text = everyPath; pattern.Len > 0 {
			v.Text = c.ix.Text(pattern)
		}
	case policy.PartTier:
		v.Text = c.ix.Text(c.ix.tiers[c.tier])
	case policy.PartClientIP:
		v.Text = a.ClientIP
	case policy.PartMethod:
		v.Text = a.Method
	case policy.PartHost:
		v.Text = a.Host
	case policy.PartPath:
		v.Text = a.Path
	case policy.PartUpstream:
		v.Text = c.upstreamCluster(a)
	// The consumer, from the first source that has a value.
	case policy.PartConsumer:
		for _, s := range c.ix.sources {
			if c.valuesAt(s, a).len() > 0 {
				v.Source = policy.Source{Kind: s.kind, Name: string(c.ix.Text(s.name))}
				place = s
				break
			}
		}
		if v.Source.Kind == 0 {
			return Value{Absent: true}
		}
		v.Text = c.heldText(place, a)
	default:
		v.Text = c.heldText(place, a)
	}
	// The text must not alias the request.
	v.Text = bytes.Clone(v.Text)
	v.Absent = len(v.Text) == 0
	return v
}

// heldText returns the request's values at a place, as one text.
func (c *caller) heldText(place source, a *Attributes) (text []byte) {
	h := c.valuesAt(place, a)
	for i := h.from; i < h.to; i++ {
		if i > h.from {
			text = append(text, ',')
		}
		text = append(text, c.values[i].text...)
	}
	return text
}
