// Package match turns a request's attributes into hits: which limits apply, and which bucket each
// one means.
//
// An Index is a policy set, compiled once into tables. A Matcher holds requests against it, in
// memory that it reuses, and answers with a Result.
package match

import "github.com/weir-proxy/weir/shared/policy"

// Matcher holds requests against an Index, one at a time. It owns the memory that this takes, so
// that a request leaves no garbage. The zero value is ready for use.
type Matcher struct {
	collector
	search search
}

// Match says what a policy set makes of a request. This is the order in which things count:
//
//  1. the kill switch: operators have switched off everything;
//  2. bans: of the address, of the consumer, then of a partition key;
//  3. exemptions: the consumer's bypass, then the policy set's lists;
//  4. the policies that apply.
//
// Nothing of a is kept. The slices of the result are good until the next call.
func (m *Matcher) Match(ix *Index, a *Attributes) Result {
	m.begin(ix, a)
	if ix.enforcement.off {
		return m.switchedOff(a)
	}
	if !ix.enforcement.lifted {
		if ban := m.ban(a); ban != NoBan {
			return Result{Access: Banned, Ban: ban, BanEnds: m.banEnds}
		}
	}
	exempt := m.exempt(a, &m.search)
	if exempt && !ix.bansKeys() {
		return Result{Access: Exempt}
	}
	found := m.find(a)
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
	return m.result(a)
}

// switchedOff is the result while operators have switched off everything.
//
//go:noinline
func (m *Matcher) switchedOff(a *Attributes) Result {
	r := Result{Access: Off}
	if !m.ix.enforcement.counts || m.exempt(a, &m.search) {
		return r
	}
	found := m.find(a)
	found, m.classMatches = cutClasses(found)
	for _, one := range found {
		if m.ix.policies[one.policy].InFlight {
			m.addPolicy(one, a)
		}
	}
	r.Counted = m.counted
	return r
}

// MatchOne is what one policy alone makes of a request whose host and path are taken to match:
// calls to the gRPC rate limit service are held so against the policies that are for calls. Before
// it Match has found the access, Open or Exempt; an exempt request stays so unless the policy knows
// a key of it that is banned.
func (m *Matcher) MatchOne(ix *Index, a *Attributes, number uint32, access Access) Result {
	if access == Exempt && !ix.bansKeys() {
		return Result{Access: Exempt}
	}
	m.begin(ix, a)
	m.addPolicy(pathMatch{policy: number}, a)
	switch {
	case m.keyBanned:
		return Result{Access: Banned, Ban: KeyBan, BanEnds: m.banEnds, BannedKey: m.bannedKey}
	case access == Exempt:
		return Result{Access: Exempt}
	}
	return m.result(a)
}

// result is what the policies make of a request that nothing before them has decided.
func (m *Matcher) result(a *Attributes) Result {
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

// find returns the policies and classes whose host and path match a request, without those behind
// gates that stay shut for it. Each is there once, in the document's order. The slice is good until
// the next search.
func (m *Matcher) find(a *Attributes) []pathMatch {
	s, t := &m.search, &m.ix.trie
	s.policies(t, m.ix.snapshot, a.Host, a.Path)
	for i := 0; i < len(s.gates); i++ { // Behind gates there are more.
		for at := s.gates[i]; at != 0; at = t.gates[at].next {
			m.open(at, a)
		}
	}
	return s.sorted()
}

// open adds the policies behind a gate for the values that the request holds there. A longer value
// than any of the policy set costs nothing.
func (m *Matcher) open(number uint32, a *Attributes) {
	t := &m.ix.trie
	slot := t.gates[number].slot
	place := &m.ix.places.nodes[slot]
	h := m.hold(source{kind: policy.SourceKind(place.parent), name: place.text, slot: slot}, a)
	for i := h.from; i < h.to; i++ {
		value := m.values[i].text
		if len(value) > policy.MaxText {
			continue
		}
		if at := t.find(m.ix.snapshot, number, gated, value); at != 0 {
			m.search.collect(t, t.nodes[at].exact)
		}
	}
}
