package access

// queue holds the waiting requests, and takes them out by turns: one of each source, and within a
// source one of each node. A source is something that a caller cannot make up, as the address of a
// connection; a node gives its name itself. The zero value is empty.
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

// rotation is a list whose front goes to the back once it had its turn. Members are found by name.
type rotation[T any] struct {
	order  []T
	byName map[string]T
}

// member returns the one of that name, made at the back if it is new.
func (r *rotation[T]) member(name string, fresh func() T) T {
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

// turned moves the front to the back, or out if it is done.
func (r *rotation[T]) turned(name string, done bool) {
	front := r.order[0]
	r.order = r.order[1:]
	if done {
		delete(r.byName, name)
		return
	}
	r.order = append(r.order, front)
}

// waiting is how many of a source wait.
func (q *queue) waiting(from string) int {
	if s, ok := q.sources.byName[from]; ok {
		return s.size
	}
	return 0
}

func (q *queue) push(t *ticket, from, name string) {
	s := q.sources.member(from, func() *source { return &source{name: from} })
	n := s.nodes.member(name, func() *node { return &node{name: name} })
	n.waiting = append(n.waiting, t)
	s.size++
}

// pop removes and returns the next ticket by turns, nil if none waits.
func (q *queue) pop() *ticket {
	if len(q.sources.order) == 0 {
		return nil
	}
	s := q.sources.order[0]
	n := s.nodes.order[0]
	t := n.waiting[0]
	n.waiting = n.waiting[1:]
	s.size--
	s.nodes.turned(n.name, len(n.waiting) == 0)
	q.sources.turned(s.name, s.size == 0)
	return t
}
