package simulate

import (
	"container/heap"

	"github.com/weir-proxy/weir/shared/quota"
)

// Window is how late a line may be: so long its place among the others is found. Proxies write a
// line when a request ends. MaxWaiting bounds how many lines wait for that.
const (
	Window     = 10 * quota.Second
	MaxWaiting = 100_000
)

// order brings records into the order of their times.
type order struct {
	waiting queue
	newest  quota.Instant
	// last is the time of the last record that was given out, late how many came too late for their
	// place: they are taken at last.
	last quota.Instant
	late int64
	seq  int64
}

// put takes a record in and hands on those whose turn it is.
func (o *order) put(r *record, next func(*record)) {
	o.newest = max(o.newest, r.at)
	o.seq++
	heap.Push(&o.waiting, queued{r, o.seq})
	for len(o.waiting) > 0 && (o.waiting[0].at <= o.newest-quota.Instant(Window) || len(o.waiting) > MaxWaiting) {
		o.give(next)
	}
}

// end hands on the rest.
func (o *order) end(next func(*record)) {
	for len(o.waiting) > 0 {
		o.give(next)
	}
}

func (o *order) give(next func(*record)) {
	first, _ := heap.Pop(&o.waiting).(queued)
	if first.at < o.last {
		o.late++
		first.at = o.last
	}
	o.last = first.at
	next(first.record)
}

type queued struct {
	*record
	seq int64
}

// queue has the earliest record first, and of one time the one that came first.
type queue []queued

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any) {
	one, _ := x.(queued)
	*q = append(*q, one)
}
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
