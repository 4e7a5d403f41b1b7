// Package vtimetest runs later events in virtual time, for tests and simulations.
package vtimetest

import "container/heap"

// Queue holds future events, by instants of any clock. The zero value holds none. Events of one
// instant happen in the order in which they were added.
type Queue[T ~int64] struct {
	events events[T]
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
	heap.Push(&q.events, Event[T]{At: at, Fire: fire, number: q.added})
}

// Next takes out the first event up to an instant; false if there is none.
func (q *Queue[T]) Next(until T) (e Event[T], ok bool) {
	if len(q.events) == 0 || q.events[0].At > until {
		return e, false
	}
	return heap.Pop(&q.events).(Event[T]), true
}

// events implements heap.Interface.
type events[T ~int64] []Event[T]

// Len implements heap.Interface.
func (q events[T]) Len() int { return len(q) }

// Less implements heap.Interface.
func (q events[T]) Less(i, j int) bool {
	if q[i].At != q[j].At {
		return q[i].At < q[j].At
	}
	return q[i].number < q[j].number
}

// Swap implements heap.Interface.
func (q events[T]) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *events[T]) Push(x any) { *q = append(*q, x.(Event[T])) }

// Pop implements heap.Interface.
func (q *events[T]) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = Event[T]{}
	*q = old[:len(old)-1]
	return last
}
