package match

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Policies that a value sets apart stand behind a gate: they are found by the value that a request
// holds at one place, and those of other values cost it nothing. Whether the policies behind a gate
// apply is decided as for all others.

// condition is what opens a gate: a value at a place, given by its slot.
type condition struct {
	slot  uint32
	value wire.Ref
}

// gate is a place by whose value the policies of a list differ. The lists behind it belong to its
// children of the kind gated.
type gate struct {
	slot uint32
	// next is the following gate of the list, 0 for none.
	next uint32
}

const (
	// gateMark is the policy of an entry that stands for the gates of its list. It is the first
	// entry, and its order is the first of the gates.
	gateMark = ^uint32(0)
	// maxGates is how many gates a list has. Policies by the values of further places stand in the
	// list itself: each gate costs a request a look at its place.
	maxGates = 64
	// maxBehind is behind how many gates a policy stands, one behind the other.
	maxBehind = 4
)

// add adds an entry to a list of a node, behind a gate for each of the conditions.
func (t *trie) add(snapshot []byte, at uint32, below bool, e entry, conditions []condition) {
	for _, c := range conditions {
		if number := t.addGate(t.addTo(at, below), c.slot); number > 0 {
			at, below = t.child(snapshot, number, gated, c.value), false
		}
	}
	list := t.addTo(at, below)
	if head := *list; head != 0 && t.entries[head].policy == gateMark {
		list = &t.entries[head].next
	}
	e.next, *list = *list, uint32(len(t.entries))
	t.entries = append(t.entries, e)
}

// addTo is one of a node's two lists of entries.
func (t *trie) addTo(at uint32, below bool) *uint32 {
	if below {
		return &t.nodes[at].below
	}
	return &t.nodes[at].exact
}

// addGate returns the gate of a list for a place, and makes it if need be; 0 if the list has too
// many.
func (t *trie) addGate(list *uint32, slot uint32) uint32 {
	if head := *list; head == 0 || t.entries[head].policy != gateMark {
		t.entries = append(t.entries, entry{policy: gateMark, next: head})
		*list = uint32(len(t.entries) - 1)
	}
	first, count := &t.entries[*list].order, 0
	for at := *first; at != 0; at = t.gates[at].next {
		if t.gates[at].slot == slot {
			return at
		}
		count++
	}
	if count == maxGates {
		return 0
	}
	t.gates = append(t.gates, gate{slot, *first})
	*first = uint32(len(t.gates) - 1)
	return *first
}

// loadConditions are the conditions of a policy that gates can hold, in memory that is used again.
func (ix *Index) loadConditions(p *Policy, memory []condition) []condition {
	memory = memory[:0]
	for i := p.headers.from; i < p.headers.to && len(memory) < maxBehind; i++ {
		m := &ix.headers[i]
		if m.op == policy.HeaderEquals && m.value.Len <= policy.MaxText {
			memory = append(memory, condition{m.name.slot, m.value})
		}
	}
	return memory
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
