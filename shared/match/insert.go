package match

import (
	"github.com/weir-proxy/weir/shared/text"
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

const (
	// maxGates is how many gates a list has. Policies by the values of further places stand in the
	// list itself: each gate costs a request a look at its place.
	maxGates = 64
	// maxBehind is behind how many gates a policy stands, one behind the other.
	maxBehind = 4
)

// insert adds the patterns of a policy without conditions. No hosts are any host, no paths any
// path.
func (t *trie) insert(snapshot []byte, policy uint32, hosts, paths []wire.Ref) {
	for i := range patterns(hosts, paths) {
		t.insertPattern(snapshot, policy, i, hosts, paths, nil)
	}
}

// patterns is how many pairs of a host and a path there are.
func patterns(hosts, paths []wire.Ref) int { return max(len(hosts), 1) * max(len(paths), 1) }

// insertPattern adds the i-th pair of a host and a path of a policy.
func (t *trie) insertPattern(snapshot []byte, policy uint32, i int, hosts, paths []wire.Ref, c []condition) {
	at, e := anyHost, entry{policy: policy}
	if len(hosts) > 0 {
		k, ref := literal, hosts[i/max(len(paths), 1)]
		if host := ref.Of(snapshot); len(host) > 2 && host[0] == '*' {
			k, ref = hostSuffix, wire.Ref{Off: ref.Off + 2, Len: ref.Len - 2}
		}
		at = t.child(snapshot, hostsRoot, k, ref)
	}
	below := true
	if len(paths) > 0 {
		e.order = uint32(i % len(paths))
		e.pattern = paths[e.order]
		at, below = t.insertPath(snapshot, at, e.pattern)
	}
	t.add(snapshot, at, below, e, c)
}

// insertPath walks down along the segments of a pattern, and returns the node at their end, and
// whether the pattern is for all below it.
func (t *trie) insertPath(snapshot []byte, at uint32, pattern wire.Ref) (end uint32, below bool) {
	path := pattern.Of(snapshot)
	for pos := 1; ; {
		end := segmentEnd(path, pos)
		segment := path[pos:end]
		if text.Is(segment, "**") {
			return at, true
		}
		if len(segment) > 0 && segment[0] == '{' {
			at = t.captureChild(at)
		} else {
			at = t.child(snapshot, at, literal, wire.Ref{Off: pattern.Off + uint32(pos), Len: uint32(end - pos)})
		}
		if end == len(path) {
			return at, false
		}
		pos = end + 1
	}
}

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
