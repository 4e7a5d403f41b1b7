package access

// queue holds the waiting requests. It serves the sources in rotation, and within a source its
// nodes in rotation. A source is a property that a caller cannot choose, such as the address of a
// connection, whereas a node chooses its name. The zero value is empty.
type queue struct {
	sources rotation[*source]
}

type source struct {
	name  string
	nodes rotation[*node]
	size  int
}

type node struct {
	name    string
	waiting []*ticket
}

// rotation is a list of named members. Its front moves to the back after it was served.
type rotation[T any] struct {
	order  []T
	byName map[string]T
}

// memberNamed returns the member of that name. A new member starts at the back.
func (r *rotation[T]) memberNamed(name string, fresh func() T) T {
	if m, ok := r.byName[name]; ok {
		return m
	}
	if r.byName == nil {
		r.byName = map[string]T{}
	}
	m := fresh()
	r.byName[name], r.order = m, append(r.order, m)
	return m
}

// rotateFront moves the front to the back, or removes it if it is done.
func (r *rotation[T]) rotateFront(name string, done bool) {
	front := r.order[0]
	r.order = r.order[1:]
	if done {
		delete(r.byName, name)
		return
	}
	r.order = append(r.order, front)
}

// countWaiting returns how many requests of a source wait.
func (q *queue) countWaiting(from string) int {
	if s, ok := q.sources.byName[from]; ok {
		return s.size
	}
	return 0
}

// push adds a request of a source and a node.
func (q *queue) push(t *ticket, from, name string) {
	s := q.sources.memberNamed(from, func() *source { return &source{name: from} })
	n := s.nodes.memberNamed(name, func() *node { return &node{name: name} })
	n.waiting = append(n.waiting, t)
	s.size++
}

// pop removes and returns the next request in rotation, nil if none waits.
func (q *queue) pop() *ticket {
	if len(q.sources.order) == 0 {
		return nil
	}
	s := q.sources.order[0]
	n := s.nodes.order[0]
	t := n.waiting[0]
	n.waiting = n.waiting[1:]
	s.size--
	s.nodes.rotateFront(n.name, len(n.waiting) == 0)
	q.sources.rotateFront(s.name, s.size == 0)
	return t
}
