package match

import (
	"github.com/weir-proxy/weir/shared/text"
	"github.com/weir-proxy/weir/shared/wire"
)

// trie finds policies by host and path, segment by segment, in time that grows with the depth of
// host and path. Nodes are numbers; children are found in one open-addressing table by parent, kind
// and text.
type trie struct {
	nodes   []node
	entries []entry
	gates   []gate
	// table holds the numbers of nodes, 0 for a free slot. Its length is a power of two.
	table []uint32
}

// node is a host, a path segment or the value of a gate. The numbers of nodes, entries and gates
// are 0 for none: node 0 is the parent of hosts and never a child, entry 0 and gate 0 are unused.
type node struct {
	parent uint32
	kind   kind
	hash   uint32
	text   wire.Ref
	// capture is the child for {name}.
	capture uint32
	// exact is the list of the patterns that end here.
	exact uint32
	// below is the list of the patterns that end here with /**.
	below uint32
}

// kind distinguishes nodes with the same parent and text.
type kind uint8

const (
	literal kind = iota
	hostSuffix
	captured
	consumer
	gated
)

// The nodes that every trie has.
const (
	hostsRoot uint32 = iota
	anyHost
)

// entry is one pattern of a policy, in the list of a node.
type entry struct {
	policy uint32
	// order is the pattern's index in its policy. The first pattern that matches is the policy_path
	// of the hit's partition.
	order   uint32
	pattern wire.Ref
	// next is the following entry of the list.
	next uint32
}

// pathMatch is a policy, or a class, whose host and path match.
type pathMatch struct {
	policy, order uint32
	pattern       wire.Ref
}

// reserveNodes reserves memory for n patterns of one segment each.
func (t *trie) reserveNodes(n int) {
	t.nodes, t.entries = make([]node, 0, n+n/8+2), make([]entry, 0, n+n/8+1)
	size := 64
	for size <= 2*n {
		size *= 2
	}
	t.table = make([]uint32, size)
}

// resetTrie empties the trie and keeps its memory.
func (t *trie) resetTrie() {
	t.nodes = append(t.nodes[:0], node{}, node{})
	t.entries, t.gates = append(t.entries[:0], entry{}), append(t.gates[:0], gate{})
	clear(t.table)
}

// captureChild returns the child that matches any segment, and makes it if needed.
func (t *trie) captureChild(parent uint32) uint32 {
	if t.nodes[parent].capture == 0 {
		t.nodes = append(t.nodes, node{parent: parent, kind: captured})
		t.nodes[parent].capture = uint32(len(t.nodes) - 1)
	}
	return t.nodes[parent].capture
}

// childOf returns the node for a text below a parent, and makes it if needed.
func (t *trie) childOf(snapshot []byte, parent uint32, k kind, ref wire.Ref) uint32 {
	name := ref.Of(snapshot)
	if at := t.findChild(snapshot, parent, k, name); at != 0 {
		return at
	}
	if 2*len(t.nodes) >= len(t.table) {
		t.growTable()
	}
	t.nodes = append(t.nodes, node{parent: parent, kind: k, hash: hashNode(parent, k, name), text: ref})
	at := uint32(len(t.nodes) - 1)
	t.putNode(at)
	return at
}

// growTable makes a larger table and puts all nodes into it.
func (t *trie) growTable() {
	t.table = make([]uint32, max(64, 2*len(t.table)))
	for at := range t.nodes {
		if t.nodes[at].hash != 0 {
			t.putNode(uint32(at))
		}
	}
}

// putNode puts a node into the first free slot from its hash on.
func (t *trie) putNode(at uint32) {
	mask := uint32(len(t.table) - 1)
	slot := t.nodes[at].hash & mask
	for t.table[slot] != 0 {
		slot = (slot + 1) & mask
	}
	t.table[slot] = at
}

// findChild returns the node for a name below a parent, 0 for none.
func (t *trie) findChild(snapshot []byte, parent uint32, k kind, name []byte) uint32 {
	if len(t.table) == 0 {
		return 0
	}
	h, mask := hashNode(parent, k, name), uint32(len(t.table)-1)
	for slot := h & mask; t.table[slot] != 0; slot = (slot + 1) & mask {
		at := t.table[slot]
		n := &t.nodes[at]
		if n.hash == h && n.parent == parent && n.kind == k && text.Equal(n.text.Of(snapshot), name) {
			return at
		}
	}
	return 0
}

// gate is a place in requests. The policies of a list differ by the value at this place. The lists
// behind the gate belong to its children of the kind gated.
type gate struct {
	slot uint32
	// next is the following gate of the list, 0 for none.
	next uint32
}

// gateMark is the policy number of an entry that refers to the gates of its list. It is the first
// entry, and its order is the number of the first gate.
const gateMark = ^uint32(0)

// search is the memory of searches in tries, reused by the next search.
type search struct {
	found []pathMatch
	// gates are the first gates of the lists that were found. They are opened later.
	gates []uint32
	// frontier are the nodes that the path has reached, next the nodes of the next segment.
	frontier, next []uint32
}

// findPolicies finds the lists of policies whose host and path match.
func (s *search) findPolicies(t *trie, snapshot, host, path []byte) {
	s.found, s.gates = s.found[:0], s.gates[:0]
	if len(t.nodes) == 0 {
		return
	}
	s.findBelow(t, snapshot, anyHost, path)
	if at := t.findChild(snapshot, hostsRoot, literal, host); at != 0 {
		s.findBelow(t, snapshot, at, path)
	}
	for i := range host {
		if host[i] != '.' || i == 0 {
			continue
		}
		if at := t.findChild(snapshot, hostsRoot, hostSuffix, host[i+1:]); at != 0 {
			s.findBelow(t, snapshot, at, path)
		}
	}
}

// hasPath reports whether a pattern without a host matches a path.
func (s *search) hasPath(t *trie, snapshot, path []byte) bool {
	if len(t.entries) <= 1 {
		return false
	}
	s.found = s.found[:0]
	s.findBelow(t, snapshot, anyHost, path)
	return len(s.found) > 0
}

// findBelow adds the policies of a host whose patterns match a path.
func (s *search) findBelow(t *trie, snapshot []byte, host uint32, path []byte) {
	s.frontier = append(s.frontier[:0], host)
	s.collectList(t, t.nodes[host].below)
	if len(path) == 0 || path[0] != '/' {
		return
	}
	for pos := 1; ; {
		end := segmentEnd(path, pos)
		s.stepSegment(t, snapshot, path[pos:end])
		for _, at := range s.frontier {
			s.collectList(t, t.nodes[at].below)
			if end == len(path) {
				s.collectList(t, t.nodes[at].exact)
			}
		}
		if end == len(path) || len(s.frontier) == 0 {
			return
		}
		pos = end + 1
	}
}

// stepSegment moves the frontier by one segment, to the children of that name and to the children
// that capture any segment.
func (s *search) stepSegment(t *trie, snapshot, segment []byte) {
	s.next = s.next[:0]
	for _, at := range s.frontier {
		if child := t.findChild(snapshot, at, literal, segment); child != 0 {
			s.next = append(s.next, child)
		}
		if child := t.nodes[at].capture; child != 0 && len(segment) > 0 {
			s.next = append(s.next, child)
		}
	}
	s.frontier, s.next = s.next, s.frontier
}

// collectList adds a list of entries to the matches. The last policy of the document is the first
// of the list.
func (s *search) collectList(t *trie, list uint32) {
	from := len(s.found)
	for ; list != 0; list = t.entries[list].next {
		e := &t.entries[list]
		if e.policy == gateMark {
			s.gates = append(s.gates, e.order)
			continue
		}
		s.found = append(s.found, pathMatch{e.policy, e.order, e.pattern})
	}
	for to := len(s.found) - 1; from < to; from, to = from+1, to-1 {
		s.found[from], s.found[to] = s.found[to], s.found[from]
	}
}

// sortedMatches returns the matches in the document's order. A policy with several matching
// patterns is there once, with the first of them.
func (s *search) sortedMatches() []pathMatch {
	found, kept, gap := s.found, 0, 1
	for i := 1; i < len(found) && gap == 1; i++ { // The matches of a single list are in order.
		if found[i].isBefore(&found[i-1]) {
			gap = len(found)
		}
	}
	for gap > 1 { // Shellsort.
		gap = max(gap*5/11, 1)
		for i := gap; i < len(found); i++ {
			one, at := found[i], i
			for ; at >= gap && one.isBefore(&found[at-gap]); at -= gap {
				found[at] = found[at-gap]
			}
			found[at] = one
		}
	}
	for i := range found {
		if kept == 0 || found[i].policy != found[kept-1].policy {
			found[kept] = found[i]
			kept++
		}
	}
	return found[:kept]
}

func (m pathMatch) isBefore(other *pathMatch) bool {
	return m.policy < other.policy || m.policy == other.policy && m.order < other.order
}

// segmentEnd returns the end of the segment that starts at from.
func segmentEnd(path []byte, from int) int {
	for i := from; i < len(path); i++ {
		if path[i] == '/' {
			return i
		}
	}
	return len(path)
}

// hashNode returns FNV-1a of the node's key, never 0. Only the operator's own texts are stored in
// the table, so a client cannot make it degenerate.
func hashNode(parent uint32, k kind, key []byte) uint32 {
	h := text.NewHash32 ^ text.Hash32(parent*2654435761^uint32(k))
	return uint32(h.Add(key)) | 1
}
