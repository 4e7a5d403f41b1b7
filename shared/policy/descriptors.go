package policy

import (
	"strconv"
	"strings"
)

// notKey is the reason to refuse the key of a descriptor's entry.
const notKey = "must be the key of a descriptor's entry, of 1 to 256 bytes"

// readDescriptors reads the entries of the descriptors that a policy is for.
func (r *reader) readDescriptors(path string, n Node, m *Match) {
	r.readList(path, n, func(path string, n Node) { r.readEntryMatch(path, n, m) })
	r.mustHold(path, n.Kind != List || n.listSize() > 0, "is empty: a descriptor has at least one entry")
	r.mustHold(path, len(m.Descriptors) <= MaxEntries, "has more than "+strconv.Itoa(MaxEntries)+" entries")
}

func (r *reader) readEntryMatch(path string, n Node, m *Match) {
	// The condition is one of several keys, each at most once.
	var e EntryMatch
	conditions := 0
	value := func(op HeaderOp) func(string, Node) {
		return func(path string, n Node) {
			conditions++
			e.Op = op
			e.Value, _ = r.readText(path, n)
		}
	}
	r.readMap(path, n,
		field{"name", func(path string, n Node) {
			var ok bool
			e.Name, ok = r.readText(path, n)
			r.mustHold(path, !ok || len(e.Name) <= MaxKey, notKey)
		}},
		field{HeaderEquals.String(), value(HeaderEquals)}, field{HeaderPrefix.String(), value(HeaderPrefix)},
		field{HeaderPresent.String(), func(path string, n Node) {
			conditions++
			e.Op = HeaderPresent
			if n.Kind != Bool || n.Text != "true" {
				r.wrongKind(path, n, "true")
			}
		}},
		field{"except", func(path string, n Node) {
			r.readList(path, n, func(path string, n Node) { r.readException(path, n, &e.Except) })
		}},
	)
	// Check the whole entry.
	if n.Kind != Map {
		return
	}
	r.requireField(path, n, "name", "")
	r.mustHold(path, conditions == 1, "must have exactly one of equals, prefix, present")
	r.mustHold(path, len(e.Except) == 0 || e.Op != HeaderEquals, "has exceptions beside equals, which has none")
	m.Descriptors = append(m.Descriptors, e)
}

func (r *reader) readException(path string, n Node, into *[]Exception) {
	var e Exception
	conditions := 0
	value := func(prefix bool) func(string, Node) {
		return func(path string, n Node) {
			conditions++
			e.Prefix = prefix
			e.Value, _ = r.readText(path, n)
		}
	}
	r.readMap(path, n, field{HeaderEquals.String(), value(false)}, field{HeaderPrefix.String(), value(true)})
	r.mustHold(path, n.Kind != Map || conditions == 1, "must have exactly one of equals, prefix")
	*into = append(*into, e)
}

// completeForCalls completes a policy for calls to the gRPC rate limit service, and refuses fields
// that such a policy cannot have. Without conditions on the entries of its descriptors, the
// partition defines these entries.
func (r *reader) completeForCalls(path string, p *Policy) {
	// Each part of the partition needs an entry of its own.
	m := &p.Match
	derived := len(m.Descriptors) == 0
	for i, part := range p.Partition {
		key, is := part.Descriptor()
		switch {
		case !is:
		case derived:
			m.Descriptors = append(m.Descriptors, EntryMatch{Name: key, Op: HeaderPresent})
		default:
			r.mustHold(path+".partition["+strconv.Itoa(i)+"]", hasEntry(m.Descriptors, key),
				"names an entry that match.descriptors does not have")
		}
	}
	if !m.IsOfCalls() {
		return
	}
	// Calls have no host and no path, and are not counted in an Envoy.
	r.mustHold(path+".match.hosts", len(m.Hosts) == 0,
		"cannot be beside a domain or descriptors: only calls to the gRPC service have those, and they have no host")
	r.mustHold(path+".match.paths", len(m.Paths) == 0,
		"cannot be beside a domain or descriptors: only calls to the gRPC service have those, and they have no path")
	r.mustHold(path+".mode", p.Mode != ModeLocal,
		"cannot be local with a domain or descriptors: calls to the gRPC service are counted by the control plane; "+
			"use mode strict or leased")
	for i := range p.Limits {
		r.mustHold(path+".limit", !p.Limits[i].InFlight,
			"cannot be in_flight with a domain or descriptors: a call does not say when its request ends")
	}
	r.mustHold(path+".algorithm", !p.Counting.Algorithm.Queues(),
		"cannot be "+p.Counting.Algorithm.String()+" with a domain or descriptors: a queue holds requests back, "+
			"which only the filter can")
}

func hasEntry(entries []EntryMatch, key string) bool {
	for i := range entries {
		if entries[i].Name == key {
			return true
		}
	}
	return false
}

// Meets reports whether the policy is for the value of an entry with the right name.
func (e *EntryMatch) Meets(value string) bool {
	switch {
	case e.Op == HeaderEquals && value != e.Value:
		return false
	case e.Op == HeaderPrefix && !strings.HasPrefix(value, e.Value):
		return false
	}
	for i := range e.Except {
		if x := &e.Except[i]; value == x.Value || x.Prefix && strings.HasPrefix(value, x.Value) {
			return false
		}
	}
	return true
}
