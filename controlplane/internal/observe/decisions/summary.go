package decisions

import (
	"container/heap"
	"slices"
)

// Summary finds the heaviest keys of a stream with a fixed number of counters: the space-saving
// algorithm of Metwally, Agrawal and El Abbadi. With m counters and a total of N, each key's true
// weight is at most its Count and at least Count - Over, Over is at most N/m, and every key that
// weighs more than N/m has a counter. Make one with NewSummary.
type Summary struct {
	room  int
	total int64
	order byCount
	of    map[string]*Counter
}

// Counter counts one key.
type Counter struct {
	Key string
	// Count is the weight, up to Over of which may be another key's.
	Count, Over int64
	// About is what the caller notes about the key.
	About any
	place int
}

// NewSummary makes a Summary with a number of counters, at least 1.
func NewSummary(room int) *Summary { return &Summary{room: room, of: map[string]*Counter{}} }

// Len returns how many keys have a counter.
func (s *Summary) Len() int { return len(s.order) }

// Total returns the weight of all that was added.
func (s *Summary) Total() int64 { return s.total }

// Add counts a key with a weight, up to over of which may be another's, and returns its counter. If
// there is no free counter, the key takes over the smallest one.
func (s *Summary) Add(key string, weight, over int64) *Counter {
	s.total += weight
	c := s.of[key]
	switch {
	case c != nil:
		c.Count, c.Over = c.Count+weight, c.Over+over
		heap.Fix(&s.order, c.place)
	case len(s.order) < s.room:
		c = &Counter{Key: key, Count: weight, Over: over}
		s.of[key] = c
		heap.Push(&s.order, c)
	default:
		c = s.order[0]
		delete(s.of, c.Key)
		c.Key = key
		c.Over = c.Count + over
		c.Count += weight
		c.About = nil
		s.of[key] = c
		heap.Fix(&s.order, 0)
	}
	return c
}

// Top returns the n heaviest keys, heaviest first.
func (s *Summary) Top(n int) []Counter {
	list := make([]Counter, 0, len(s.order))
	for _, c := range s.order {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b Counter) int {
		switch {
		case a.Count != b.Count && a.Count > b.Count:
			return -1
		case a.Count != b.Count:
			return 1
		case a.Key < b.Key:
			return -1
		}
		return 1
	})
	return list[:min(n, len(list))]
}

// byCount is a heap with the smallest counter at the top.
type byCount []*Counter

// Len implements heap.Interface.
func (h byCount) Len() int { return len(h) }

// Less implements heap.Interface.
func (h byCount) Less(i, j int) bool { return h[i].Count < h[j].Count }

// Swap implements heap.Interface.
func (h byCount) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *byCount) Push(x any) {
	c := x.(*Counter)
	c.place = len(*h)
	*h = append(*h, c)
}

// Pop implements heap.Interface.
func (h *byCount) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
