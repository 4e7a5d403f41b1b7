// Package match turns a request's attributes into hits: which limits apply, and which bucket each
// limit uses.
//
// An Index is a policy set, compiled once into tables. A Matcher matches requests against it, in
// memory that it reuses, and returns a Result.
package match

import "github.com/weir-proxy/weir/shared/policy"

// Matcher matches requests against an Index, one request at a time. It owns the memory for this, so
// that a request leaves no garbage. The zero value is ready for use.
type Matcher struct {
	collector
	search search
}

// Match matches a request against a policy set. It checks in this order:
//
//  1. the kill switch: operators have switched off everything;
//  2. bans: of the address, of the consumer, then of a partition key;
//  3. exemptions: the consumer's bypass, then the policy set's lists;
//  4. the policies that apply.
//
// It keeps nothing of a. The slices of the result are good until the next call.
func (m *Matcher) Match(ix *Index, a *Attributes) Result {
	m.resetCollector(ix, a)
	if ix.enforcement.off {
		return m.switchedOff(a)
	}
	if !ix.enforcement.lifted {
		if ban := m.findBan(a); ban != NoBan {
			return Result{Access: Banned, Ban: ban, BanEnds: m.banEnds}
		}
	}
	exempt := m.isExempt(a, &m.search)
	if exempt && !ix.bansKeys() {
		return Result{Access: Exempt}
	}
	found := m.findMatches(a)
	found, m.classMatches = cutClasses(found)
	for _, one := range found {
		m.addPolicy(one, a)
	}
	switch {
	case m.keyBanned:
		return Result{Access: Banned, Ban: KeyBan, BanEnds: m.banEnds, BannedKey: m.bannedKey}
	case exempt:
		return Result{Access: Exempt}
	}
	return m.openResult(a)
}

// switchedOff returns the result while operators have switched off everything.
//
//go:noinline
func (m *Matcher) switchedOff(a *Attributes) Result {
	r := Result{Access: Off}
	if !m.ix.enforcement.counts || m.isExempt(a, &m.search) {
		return r
	}
	found := m.findMatches(a)
	found, m.classMatches = cutClasses(found)
	for _, one := range found {
		if m.ix.policies[one.policy].InFlight {
			m.addPolicy(one, a)
		}
	}
	r.Counted = m.counted
	return r
}

// MatchOne matches a request against one policy, as if host and path matched. Calls to the gRPC
// rate limit service are matched like this against the policies for calls. Match has found the
// access before, Open or Exempt. An exempt request stays exempt unless the policy uses a key of it
// that is banned.
func (m *Matcher) MatchOne(ix *Index, a *Attributes, number uint32, access Access) Result {
	if access == Exempt && !ix.bansKeys() {
		return Result{Access: Exempt}
	}
	m.resetCollector(ix, a)
	m.addPolicy(pathMatch{policy: number}, a)
	switch {
	case m.keyBanned:
		return Result{Access: Banned, Ban: KeyBan, BanEnds: m.banEnds, BannedKey: m.bannedKey}
	case access == Exempt:
		return Result{Access: Exempt}
	}
	return m.openResult(a)
}

// openResult returns the result of the policies for a request that was not decided before them.
func (m *Matcher) openResult(a *Attributes) Result {
	if len(m.ix.wide) > 0 && len(m.hits) > 0 {
		m.addWide(a)
	}
	return Result{
		Bypassed:           m.bypassed,
		Hits:               m.hits,
		Counted:            m.counted,
		Subjects:           m.subjects,
		Own:                m.own,
		Rank:               m.rank,
		Consumer:           m.consumer.Key,
		ExceptionsRevision: m.revision,
	}
}

// findMatches returns the policies and classes whose host and path match a request, without the
// policies behind gates that stay shut for it. Each occurs once, in the document's order. The slice
// is good until the next search.
func (m *Matcher) findMatches(a *Attributes) []pathMatch {
	s, t := &m.search, &m.ix.trie
	s.findPolicies(t, m.ix.snapshot, a.Host, a.Path)
	for i := 0; i < len(s.gates); i++ { // Behind gates there are more.
		for at := s.gates[i]; at != 0; at = t.gates[at].next {
			m.openGate(at, a)
		}
	}
	return s.sortedMatches()
}

// openGate adds the policies behind a gate for the values of the request at its place. It skips a
// value that is longer than any value in the policy set.
func (m *Matcher) openGate(number uint32, a *Attributes) {
	t := &m.ix.trie
	slot := t.gates[number].slot
	place := &m.ix.places.nodes[slot]
	h := m.valuesAt(source{kind: policy.SourceKind(place.parent), name: place.text, slot: slot}, a)
	for i := h.from; i < h.to; i++ {
		value := m.values[i].text
		if len(value) > policy.MaxText {
			continue
		}
		if at := t.findChild(m.ix.snapshot, number, gated, value); at != 0 {
			m.search.collectList(t, t.nodes[at].exact)
		}
	}
}
