package simulate

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/weir-proxy/weir/shared/quota"
)

// MaxCallers is how many callers are counted exactly. If there are more, those with the most
// refusals stay, by the space-saving sketch: each count is then too high by its Error at most.
const MaxCallers = 100_000

// Caller is who was refused by a policy.
type Caller struct {
	Who     string `json:"who"`
	Policy  string `json:"policy"`
	Refused int64  `json:"refused"`
	// Error is by how much Refused may be too high; 0 for an exact count.
	Error int64     `json:"error,omitempty"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`

	place int // in the heap
}

type callerKey struct{ policy, who string }

// callers counts refusals by policy and caller, in bounded memory.
type callers struct {
	most int
	all  map[callerKey]*Caller
	heap smallest
	// requests are all that were counted.
	requests int64
	// exact says that no caller was replaced by another.
	exact bool
}

func newCallers(most int) *callers {
	return &callers{most: most, all: map[callerKey]*Caller{}, exact: true}
}

func (c *callers) add(policy, who string, at quota.Instant) {
	key, when := callerKey{policy, who}, instant(at)
	known := c.all[key]
	c.requests++
	switch {
	case known != nil:
	case len(c.all) < c.most:
		known = &Caller{Who: who, Policy: policy, First: when}
		heap.Push(&c.heap, known)
		c.all[key] = known
	default:
		known = c.heap[0]
		c.exact = false
		delete(c.all, callerKey{known.Policy, known.Who})
		*known = Caller{
			Who: who, Policy: policy, Refused: known.Refused, Error: known.Refused, First: when, place: known.place,
		}
		c.all[key] = known
	}
	known.Refused++
	known.Last = when
	heap.Fix(&c.heap, known.place)
}

// top are the n callers with the most refusals.
func (c *callers) top(n int) []Caller {
	out := make([]Caller, 0, len(c.all))
	for _, one := range c.all {
		out = append(out, *one)
	}
	slices.SortFunc(out, func(a, b Caller) int {
		return cmp.Or(
			cmp.Compare(b.Refused, a.Refused), a.First.Compare(b.First),
			cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Who, b.Who),
		)
	})
	return out[:min(n, len(out))]
}

// smallest has the caller with the fewest refusals first.
type smallest []*Caller

func (s smallest) Len() int           { return len(s) }
func (s smallest) Less(i, j int) bool { return s[i].Refused < s[j].Refused }
func (s smallest) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].place, s[j].place = i, j
}
func (s *smallest) Push(x any) {
	one, _ := x.(*Caller)
	one.place = len(*s)
	*s = append(*s, one)
}
func (s *smallest) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}

func instant(at quota.Instant) time.Time { return time.UnixMicro(int64(at)).UTC() }
