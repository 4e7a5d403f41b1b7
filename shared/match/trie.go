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

// node is a host, a path segment or the value of a gate. Numbers of nodes, entries and gates are 0
// for none: node 0 is the parent of hosts and never a child, entry 0 and gate 0 are placeholders.
type node struct {
	parent uint32
	kind   kind
	hash   uint32
	text   wire.Ref
	// capture is the child for {name}.
	capture uint32
	// exact are the entries of patterns that end here.
	exact uint32
	// below are the entries of patterns that end here with /**.
	below uint32
}

// kind sets nodes of the same parent and text apart.
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

// entry is one pattern of a policy, in a list of those that share a node.
type entry struct {
	policy uint32
	// order is the pattern's index in its policy. The first that matches is the policy_path of the
	// hit's partition.
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

// reserve makes room for n patterns of one segment each beyond what others share.
func (t *trie) reserve(n int) {
	t.nodes, t.entries = make([]node, 0, n+n/8+2), make([]entry, 0, n+n/8+1)
	size := 64
	for size <= 2*n {
		size *= 2
	}
	t.table = make([]uint32, size)
}

// reset empties the trie and keeps its memory.
func (t *trie) reset() {
	t.nodes = append(t.nodes[:0], node{}, node{})
	t.entries, t.gates = append(t.entries[:0], entry{}), append(t.gates[:0], gate{})
	clear(t.table)
}

// captureChild returns the child that stands for any segment, and makes it if need be.
func (t *trie) captureChild(parent uint32) uint32 {
	if t.nodes[parent].capture == 0 {
		t.nodes = append(t.nodes, node{parent: parent, kind: captured})
		t.nodes[parent].capture = uint32(len(t.nodes) - 1)
	}
	return t.nodes[parent].capture
}

// child returns the node for a text below a parent, and makes it if need be.
func (t *trie) child(snapshot []byte, parent uint32, k kind, ref wire.Ref) uint32 {
	name := ref.Of(snapshot)
	if at := t.find(snapshot, parent, k, name); at != 0 {
		return at
	}
	if 2*len(t.nodes) >= len(t.table) {
		t.grow()
	}
	t.nodes = append(t.nodes, node{parent: parent, kind: k, hash: hash(parent, k, name), text: ref})
	at := uint32(len(t.nodes) - 1)
	t.put(at)
	return at
}

// grow makes a larger table and puts all nodes into it.
func (t *trie) grow() {
	t.table = make([]uint32, max(64, 2*len(t.table)))
	for at := range t.nodes {
		if t.nodes[at].hash != 0 {
			t.put(uint32(at))
		}
	}
}

// put puts a node into the first free slot from its hash on.
func (t *trie) put(at uint32) {
	mask := uint32(len(t.table) - 1)
	slot := t.nodes[at].hash & mask
	for t.table[slot] != 0 {
		slot = (slot + 1) & mask
	}
	t.table[slot] = at
}

// find returns the node for a name below a parent, 0 for none.
func (t *trie) find(snapshot []byte, parent uint32, k kind, name []byte) uint32 {
	if len(t.table) == 0 {
		return 0
	}
	h, mask := hash(parent, k, name), uint32(len(t.table)-1)
	for slot := h & mask; t.table[slot] != 0; slot = (slot + 1) & mask {
		at := t.table[slot]
		n := &t.nodes[at]
		if n.hash == h && n.parent == parent && n.kind == k && text.Equal(n.text.Of(snapshot), name) {
			return at
		}
	}
	return 0
}

// gate is a place by whose value the policies of a list differ. The lists behind it belong to its
// children of the kind gated.
type gate struct {
	slot uint32
	// next is the following gate of the list, 0 for none.
	next uint32
}

// gateMark is the policy of an entry that stands for the gates of its list. It is the first entry,
// and its order is the first of the gates.
const gateMark = ^uint32(0)

// search is the memory of searches in tries, reused from one to the next.
type search struct {
	found []pathMatch
	// gates are the first gates of the lists that were found, to be opened.
	gates []uint32
	// frontier are the nodes that the path has reached so far, next those of the next segment.
	frontier, next []uint32
}

// policies finds the lists of policies whose host and path match.
func (s *search) policies(t *trie, snapshot, host, path []byte) {
	s.found, s.gates = s.found[:0], s.gates[:0]
	if len(t.nodes) == 0 {
		return
	}
	s.below(t, snapshot, anyHost, path)
	if at := t.find(snapshot, hostsRoot, literal, host); at != 0 {
		s.below(t, snapshot, at, path)
	}
	for i := range host {
		if host[i] != '.' || i == 0 {
			continue
		}
		if at := t.find(snapshot, hostsRoot, hostSuffix, host[i+1:]); at != 0 {
			s.below(t, snapshot, at, path)
		}
	}
}

// hasPath reports whether a pattern that names no host matches a path.
func (s *search) hasPath(t *trie, snapshot, path []byte) bool {
	if len(t.entries) <= 1 {
		return false
	}
	s.found = s.found[:0]
	s.below(t, snapshot, anyHost, path)
	return len(s.found) > 0
}

// below adds the policies of a host whose patterns match a path.
func (s *search) below(t *trie, snapshot []byte, host uint32, path []byte) {
	s.frontier = append(s.frontier[:0], host)
	s.collect(t, t.nodes[host].below)
	if len(path) == 0 || path[0] != '/' {
		return
	}
	for pos := 1; ; {
		end := segmentEnd(path, pos)
		s.step(t, snapshot, path[pos:end])
		for _, at := range s.frontier {
			s.collect(t, t.nodes[at].below)
			if end == len(path) {
				s.collect(t, t.nodes[at].exact)
			}
		}
		if end == len(path) || len(s.frontier) == 0 {
			return
		}
		pos = end + 1
	}
}

// step moves the frontier on by one segment, to the children of that name and those that capture
// any.
func (s *search) step(t *trie, snapshot, segment []byte) {
	s.next = s.next[:0]
	for _, at := range s.frontier {
		if child := t.find(snapshot, at, literal, segment); child != 0 {
			s.next = append(s.next, child)
		}
		if child := t.nodes[at].capture; child != 0 && len(segment) > 0 {
			s.next = append(s.next, child)
		}
	}
	s.frontier, s.next = s.next, s.frontier
}

// collect adds a list of entries to what was found. The last policy of the document comes first in
// the list.
func (s *search) collect(t *trie, list uint32) {
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

// sorted is what was found in the document's order. A policy that several of its patterns have
// found is there with the first of them.
func (s *search) sorted() []pathMatch {
	found, kept, gap := s.found, 0, 1
	for i := 1; i < len(found) && gap == 1; i++ { // One list is in order.
		if found[i].before(&found[i-1]) {
			gap = len(found)
		}
	}
	for gap > 1 { // Shellsort.
		gap = max(gap*5/11, 1)
		for i := gap; i < len(found); i++ {
			one, at := found[i], i
			for ; at >= gap && one.before(&found[at-gap]); at -= gap {
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

func (m pathMatch) before(other *pathMatch) bool {
	return m.policy < other.policy || m.policy == other.policy && m.order < other.order
}

// segmentEnd is where the segment that starts at from ends.
func segmentEnd(path []byte, from int) int {
	for i := from; i < len(path); i++ {
		if path[i] == '/' {
			return i
		}
	}
	return len(path)
}

// hash is FNV-1a of the node's key, never 0. Only the operator's own texts are stored in the table,
// so a client cannot make it degenerate.
func hash(parent uint32, k kind, key []byte) uint32 {
	h := text.NewHash32 ^ text.Hash32(parent*2654435761^uint32(k))
	return uint32(h.Add(key)) | 1
}
