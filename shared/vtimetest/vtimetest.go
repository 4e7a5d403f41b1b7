// Package vtimetest runs later events in virtual time, for tests and simulations.
package vtimetest

// Queue holds future events, by instants of any clock. The zero value holds none. Events of one
// instant happen in the order in which they were added.
type Queue[T ~int64] struct {
	// events are a binary heap. container/heap would allocate memory for each event.
	events []Event[T]
	added  uint64
}

// Event is something to happen at an instant.
type Event[T ~int64] struct {
	At   T
	Fire func()

	number uint64
}

// Add has fire happen at an instant.
func (q *Queue[T]) Add(at T, fire func()) {
	q.added++
	e := Event[T]{At: at, Fire: fire, number: q.added}
	q.events = append(q.events, e)
	i := len(q.events) - 1
	for i > 0 {
		above := (i - 1) / 2
		if !e.before(&q.events[above]) {
			break
		}
		q.events[i] = q.events[above]
		i = above
	}
	q.events[i] = e
}

// Next takes out the first event up to an instant; false if there is none.
func (q *Queue[T]) Next(until T) (e Event[T], ok bool) {
	if len(q.events) == 0 || q.events[0].At > until {
		return e, false
	}
	e = q.events[0]
	last := len(q.events) - 1
	moved := q.events[last]
	q.events[last] = Event[T]{}
	q.events = q.events[:last]
	if last > 0 {
		q.sink(moved)
	}
	return e, true
}

// sink puts an event in place of the first event, and restores the order below it.
func (q *Queue[T]) sink(e Event[T]) {
	i := 0
	for {
		below := 2*i + 1
		if below >= len(q.events) {
			break
		}
		if right := below + 1; right < len(q.events) && q.events[right].before(&q.events[below]) {
			below = right
		}
		if !q.events[below].before(&e) {
			break
		}
		q.events[i] = q.events[below]
		i = below
	}
	q.events[i] = e
}

// before reports whether e happens before the other event.
func (e *Event[T]) before(other *Event[T]) bool {
	return e.At < other.At || e.At == other.At && e.number < other.number
}
