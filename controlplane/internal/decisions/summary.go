package decisions

import (
	"container/heap"
	"slices"
)

// Summary finds the heaviest of a stream's keys with as many counters as it has room for: the
// space-saving algorithm of Metwally, Agrawal and El Abbadi. With m counters and a total of N, each
// key's true weight is at most its Count and at least Count - Over, Over is at most N/m, and every
// key that weighs more than N/m is there. Make one with NewSummary.
type Summary struct {
	room  int
	total int64
	order byCount
	of    map[string]*Counter
}

// Counter is one key's.
type Counter struct {
	Key string
	// Count is the weight, of which up to Over may be another key's.
	Count, Over int64
	// About is what the caller has to say of the key.
	About any
	place int
}

// NewSummary makes one with room for that many counters, at least 1.
func NewSummary(room int) *Summary { return &Summary{room: room, of: make(map[string]*Counter, room)} }

// Total is the weight of all that was added.
func (s *Summary) Total() int64 { return s.total }

// Add counts a key with a weight, of which up to over may be another's, and returns its counter:
// the least one's, if there is no room for another.
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
		c.Key, c.Count, c.Over, c.About = key, c.Count+weight, c.Count+over, nil
		s.of[key] = c
		heap.Fix(&s.order, 0)
	}
	return c
}

// Top are the n heaviest, heaviest first.
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

// byCount is a heap with the least counter at the top.
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
