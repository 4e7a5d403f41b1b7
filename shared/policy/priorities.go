package policy

import "strconv"

// MaxClasses bounds the classes of a policy set.
const MaxClasses = 8

// Class is a class of requests. A request belongs to the first class of Set.Priorities whose Match
// matches, or else to the Rest.
type Class struct {
	Name  string
	Match Match
	// Rest means that the class has no match and takes all other requests.
	Rest bool
	// Untrusted means that the class depends on a header that any client can send.
	Untrusted bool
}

// readPriorities reads the classes. They come before the policies, which name them.
func (r *reader) readPriorities(path string, doc Node, set *Set) {
	r.readField(path, doc, "priorities", func(path string, n Node) {
		r.mustHold(path, n.Kind != List || n.listSize() > 0, "is empty: name at least one class")
		r.readLongList(path, n, MaxClasses, func(path string, n Node) { r.readClass(path, n, set) })
		rest := 0
		for _, c := range set.Priorities {
			if c.Rest {
				rest++
			}
		}
		r.mustHold(path, n.Kind != List || rest == 1, "must have exactly one class without match, for the requests "+
			"that no other class matches; "+strconv.Itoa(rest)+" have none")
	})
}

func (r *reader) readClass(path string, n Node, set *Set) {
	c, d := Class{Rest: true}, &r.draft
	d.set, d.policy.Match = set, Match{}
	d.untrusted, d.inClass = false, true
	r.readMap(path, n,
		field{"name", func(path string, n Node) {
			c.Name = r.readPolicyName(path, n)
			r.mustHold(path, set.ClassNamed(c.Name) < 0, "is taken by another class: names must be unique")
		}},
		field{"match", func(path string, n Node) {
			c.Rest = false
			r.readMatch(path, n)
		}})
	r.requireField(path, n, "name", "")
	r.mustHold(path+".match", !d.untrusted || len(set.Priorities) > 0,
		"lets any client that sends the header be of the first class: write trusted: true beside the header's name if "+
			"the proxy before Envoy sets it and removes any that clients send")
	r.mustHold(path+".match", !d.policy.Match.IsOfCalls(), "is of calls to the gRPC rate limit service: classes are "+
		"of requests that Envoys see")
	c.Match, c.Untrusted = d.policy.Match, d.untrusted
	d.inClass = false
	set.Priorities = append(set.Priorities, c)
}

// ClassNamed returns the index of a class; -1 if there is none with the name.
func (s *Set) ClassNamed(name string) int {
	for i := range s.Priorities {
		if s.Priorities[i].Name == name {
			return i
		}
	}
	return -1
}

// Notes returns notes for operators about the classes.
func (s *Set) Notes() (notes []string) {
	rest := 0
	for rest < len(s.Priorities) && !s.Priorities[rest].Rest {
		rest++
	}
	for i := range min(rest, len(s.Priorities)) {
		if c := &s.Priorities[i]; c.Untrusted {
			notes = append(notes, "class "+c.Name+" depends on a header that any client can send, and is more "+
				"important than "+s.Priorities[rest].Name+", the rest")
		}
	}
	return notes
}
