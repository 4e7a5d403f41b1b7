package match

import (
	"github.com/weir-proxy/weir/shared/text"
	"github.com/weir-proxy/weir/shared/wire"
)

// trie finds policies by host and path, segment by segment, in time that grows with the depth of host and path. Nodes are
// numbers; children are found in one open-addressing table by (parent, kind, text).
type trie struct {
	nodes   []node
	entries []entry
	table   []uint32 // node numbers, 0 for free; its length is a power of two

	frontier, next []uint32
}

// node is a host or a path segment. Numbers of nodes and entries are 0 for none: node 0 is the parent of hosts and never a
// child, entry 0 is a placeholder.
type node struct {
	parent  uint32
	kind    kind
	hash    uint32
	text    wire.Ref
	capture uint32 // the child for {name}
	exact   uint32 // entries of patterns that end here
	below   uint32 // entries of patterns that end here with /**
}

type kind uint8

const (
	literal kind = iota
	hostSuffix
	captured
	consumer
)

const (
	hostsRoot uint32 = iota
	anyHost
)

// entry is one pattern of a policy, in a list of those that share a node.
type entry struct {
	policy uint32
	// order is the pattern's place in its policy: the first that matches names the hit's policy_path.
	order   uint32
	pattern wire.Ref
	next    uint32
}

// candidate is a policy whose host and path match.
type candidate struct {
	policy, order uint32
	pattern       wire.Ref
}

// reserve makes room for n patterns of one segment each beyond what others share.
func (t *trie) reserve(n int) {
	t.nodes, t.entries = make([]node, 0, n+n/8+2), make([]entry, 0, n+1)
	size := 64
	for size <= 2*n {
		size *= 2
	}
	t.table = make([]uint32, size)
}

func (t *trie) reset() {
	t.nodes = append(t.nodes[:0], node{}, node{})
	t.entries = append(t.entries[:0], entry{})
	clear(t.table)
}

// everything is the pattern of a policy that names no path.
var everything = []byte("/**")

func (t *trie) insert(snapshot []byte, policy uint32, hosts, paths []wire.Ref) {
	if len(hosts) == 0 {
		t.insertPaths(snapshot, anyHost, policy, paths)
	}
	for _, ref := range hosts {
		k := literal
		if host := ref.Of(snapshot); len(host) > 2 && host[0] == '*' {
			k, ref = hostSuffix, wire.Ref{Off: ref.Off + 2, Len: ref.Len - 2}
		}
		t.insertPaths(snapshot, t.child(snapshot, hostsRoot, k, ref), policy, paths)
	}
}

func (t *trie) insertPaths(snapshot []byte, host, policy uint32, paths []wire.Ref) {
	if len(paths) == 0 {
		t.nodes[host].below = t.add(entry{policy: policy, next: t.nodes[host].below})
	}
	for order, ref := range paths {
		e := entry{policy: policy, order: uint32(order), pattern: ref}
		at := host
		text := ref.Of(snapshot)
		for pos := 1; ; {
			end := segmentEnd(text, pos)
			segment := text[pos:end]
			if len(segment) == 2 && segment[0] == '*' && segment[1] == '*' {
				e.next = t.nodes[at].below
				t.nodes[at].below = t.add(e)
				break
			}
			if len(segment) > 0 && segment[0] == '{' {
				at = t.captureChild(at)
			} else {
				at = t.child(snapshot, at, literal, wire.Ref{Off: ref.Off + uint32(pos), Len: uint32(end - pos)})
			}
			if end == len(text) {
				e.next = t.nodes[at].exact
				t.nodes[at].exact = t.add(e)
				break
			}
			pos = end + 1
		}
	}
}

func (t *trie) add(e entry) uint32 {
	t.entries = append(t.entries, e)
	return uint32(len(t.entries) - 1)
}

func (t *trie) captureChild(parent uint32) uint32 {
	if t.nodes[parent].capture == 0 {
		t.nodes = append(t.nodes, node{parent: parent, kind: captured})
		t.nodes[parent].capture = uint32(len(t.nodes) - 1)
	}
	return t.nodes[parent].capture
}

// child returns the node for text below parent, made if need be.
func (t *trie) child(snapshot []byte, parent uint32, k kind, ref wire.Ref) uint32 {
	text := ref.Of(snapshot)
	if at := t.find(snapshot, parent, k, text); at != 0 {
		return at
	}
	if 2*len(t.nodes) >= len(t.table) {
		t.grow()
	}
	t.nodes = append(t.nodes, node{parent: parent, kind: k, hash: hash(parent, k, text), text: ref})
	at := uint32(len(t.nodes) - 1)
	t.place(at)
	return at
}

func (t *trie) grow() {
	t.table = make([]uint32, max(64, 2*len(t.table)))
	for at := range t.nodes {
		if t.nodes[at].hash != 0 {
			t.place(uint32(at))
		}
	}
}

func (t *trie) place(at uint32) {
	mask := uint32(len(t.table) - 1)
	slot := t.nodes[at].hash & mask
	for t.table[slot] != 0 {
		slot = (slot + 1) & mask
	}
	t.table[slot] = at
}

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

// search appends the policies whose host and path match, each once, with the first of its patterns that does.
func (t *trie) search(snapshot []byte, host, path []byte, found []candidate) []candidate {
	if len(t.nodes) == 0 {
		return found
	}
	found = t.searchPath(snapshot, anyHost, path, found)
	if at := t.find(snapshot, hostsRoot, literal, host); at != 0 {
		found = t.searchPath(snapshot, at, path, found)
	}
	for i := range host {
		if host[i] != '.' || i == 0 {
			continue
		}
		if at := t.find(snapshot, hostsRoot, hostSuffix, host[i+1:]); at != 0 {
			found = t.searchPath(snapshot, at, path, found)
		}
	}
	return found
}

func (t *trie) searchPath(snapshot []byte, root uint32, path []byte, found []candidate) []candidate {
	t.frontier = append(t.frontier[:0], root)
	found = t.collect(t.nodes[root].below, found)
	if len(path) == 0 || path[0] != '/' {
		return found
	}
	for pos := 1; ; {
		end := segmentEnd(path, pos)
		segment := path[pos:end]
		t.next = t.next[:0]
		for _, at := range t.frontier {
			if child := t.find(snapshot, at, literal, segment); child != 0 {
				t.next = append(t.next, child)
			}
			if child := t.nodes[at].capture; child != 0 && len(segment) > 0 {
				t.next = append(t.next, child)
			}
		}
		t.frontier, t.next = t.next, t.frontier
		for _, at := range t.frontier {
			found = t.collect(t.nodes[at].below, found)
			if end == len(path) {
				found = t.collect(t.nodes[at].exact, found)
			}
		}
		if end == len(path) || len(t.frontier) == 0 {
			return found
		}
		pos = end + 1
	}
}

// collect adds a list of entries, keeping found in the document's order.
func (t *trie) collect(list uint32, found []candidate) []candidate {
	for ; list != 0; list = t.entries[list].next {
		e := &t.entries[list]
		at := len(found)
		for at > 0 && found[at-1].policy > e.policy {
			at--
		}
		if at > 0 && found[at-1].policy == e.policy {
			if e.order < found[at-1].order {
				found[at-1] = candidate{e.policy, e.order, e.pattern}
			}
			continue
		}
		found = append(found, candidate{})
		copy(found[at+1:], found[at:])
		found[at] = candidate{e.policy, e.order, e.pattern}
	}
	return found
}

func segmentEnd(path []byte, from int) int {
	for i := from; i < len(path); i++ {
		if path[i] == '/' {
			return i
		}
	}
	return len(path)
}

// hash is FNV-1a of the node's key, never 0. Only the operator's own texts are stored in the table, so a client cannot make it
// degenerate.
func hash(parent uint32, k kind, key []byte) uint32 {
	h := text.NewHash32 ^ text.Hash32(parent*2654435761^uint32(k))
	return uint32(h.Add(key)) | 1
}
