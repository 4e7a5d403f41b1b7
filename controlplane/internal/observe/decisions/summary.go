package decisions

import (
	"container/heap"
	"slices"
)

// Summary finds the heaviest keys of a stream with a fixed number of counters: the space-saving
// algorithm of Metwally, Agrawal and El Abbadi. With m counters and a total of N, the true weight
// of a key is at most its Count and at least Count - Over. Over is at most N/m, and every key with
// a weight above N/m has a counter. Make a Summary with NewSummary.
type Summary struct {
	room  int
	total int64
	order byCount
	of    map[string]*Counter
}

// Counter counts one key.
type Counter struct {
	Key string
	// Count is the weight, which includes up to Over of other keys.
	Count, Over int64
	// About is the caller's own data about the key.
	About any
	place int
}

// NewSummary makes a Summary with a number of counters, at least 1.
func NewSummary(room int) *Summary { return &Summary{room: room, of: map[string]*Counter{}} }

// Len returns the number of keys with a counter.
func (s *Summary) Len() int { return len(s.order) }

// Total returns the sum of all added weights.
func (s *Summary) Total() int64 { return s.total }

// Add adds a weight to a key, of which up to over may belong to other keys, and returns the key's
// counter. If there is no free counter, the key takes over the smallest counter.
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

// Top returns the n heaviest keys, the heaviest first.
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
