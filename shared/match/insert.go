package match

import (
	"github.com/weir-proxy/weir/shared/text"
	"github.com/weir-proxy/weir/shared/wire"
)

// Policies that differ by a value are behind a gate: they are found by the request's value at one
// place. Policies with other values then cost the request nothing. Whether the policies behind a
// gate apply is decided as for all policies.

// condition opens a gate: a value at a place, given by its slot.
type condition struct {
	slot  uint32
	value wire.Ref
}

const (
	// maxGates is the largest number of gates of a list. Policies with conditions on further places
	// are in the list itself, because each gate costs a request a read of its place.
	maxGates = 64
	// maxBehind is the largest number of gates in a row before a policy.
	maxBehind = 4
)

// insertPolicy adds the patterns of a policy without conditions. An empty list of hosts is any
// host, an empty list of paths any path.
func (t *trie) insertPolicy(snapshot []byte, policy uint32, hosts, paths []wire.Ref) {
	for i := range patternCount(hosts, paths) {
		t.insertPattern(snapshot, policy, i, hosts, paths, nil)
	}
}

// patternCount returns the number of pairs of a host and a path.
func patternCount(hosts, paths []wire.Ref) int { return max(len(hosts), 1) * max(len(paths), 1) }

// insertPattern adds the i-th pair of a host and a path of a policy.
func (t *trie) insertPattern(snapshot []byte, policy uint32, i int, hosts, paths []wire.Ref, c []condition) {
	at, e := anyHost, entry{policy: policy}
	if len(hosts) > 0 {
		k, ref := literal, hosts[i/max(len(paths), 1)]
		if host := ref.Of(snapshot); len(host) > 2 && host[0] == '*' {
			k, ref = hostSuffix, wire.Ref{Off: ref.Off + 2, Len: ref.Len - 2}
		}
		at = t.childOf(snapshot, hostsRoot, k, ref)
	}
	below := true
	if len(paths) > 0 {
		e.order = uint32(i % len(paths))
		e.pattern = paths[e.order]
		at, below = t.insertPath(snapshot, at, e.pattern)
	}
	t.addEntry(snapshot, at, below, e, c)
}

// insertPath walks down the segments of a pattern. It returns the node at their end, and whether
// the pattern includes all paths below.
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
			at = t.childOf(snapshot, at, literal, wire.Ref{Off: pattern.Off + uint32(pos), Len: uint32(end - pos)})
		}
		if end == len(path) {
			return at, false
		}
		pos = end + 1
	}
}

// addEntry adds an entry to a list of a node, behind a gate for each of the conditions.
func (t *trie) addEntry(snapshot []byte, at uint32, below bool, e entry, conditions []condition) {
	for _, c := range conditions {
		if number := t.addGate(t.entryList(at, below), c.slot); number > 0 {
			at, below = t.childOf(snapshot, number, gated, c.value), false
		}
	}
	list := t.entryList(at, below)
	if head := *list; head != 0 && t.entries[head].policy == gateMark {
		list = &t.entries[head].next
	}
	e.next, *list = *list, uint32(len(t.entries))
	t.entries = append(t.entries, e)
}

// entryList returns one of a node's two lists of entries.
func (t *trie) entryList(at uint32, below bool) *uint32 {
	if below {
		return &t.nodes[at].below
	}
	return &t.nodes[at].exact
}

// addGate returns the gate of a list for a place, and makes it if needed; 0 if the list has
// maxGates gates.
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
