package simulate

import (
	"container/heap"

	"github.com/weir-proxy/weir/shared/quota"
)

// Window is how late a line may be and still be sorted by its time, because proxies write a line
// when the request ends. MaxWaiting is the maximum number of lines that wait to be sorted.
const (
	Window     = 10 * quota.Second
	MaxWaiting = 100_000
)

// order sorts records by their time.
type order struct {
	waiting queue
	newest  quota.Instant
	// last is the time of the last record that was passed on. late counts the records that came too
	// late to be sorted; they get the time of last.
	last quota.Instant
	late int64
	seq  int64
}

// putRecord adds a record, and passes on the records that cannot be overtaken any more.
func (o *order) putRecord(r *record, next func(*record)) {
	o.newest = max(o.newest, r.at)
	o.seq++
	heap.Push(&o.waiting, queued{r, o.seq})
	for len(o.waiting) > 0 && (o.waiting[0].at <= o.newest-quota.Instant(Window) || len(o.waiting) > MaxWaiting) {
		o.passFirst(next)
	}
}

// passOnRest passes on the remaining records.
func (o *order) passOnRest(next func(*record)) {
	for len(o.waiting) > 0 {
		o.passFirst(next)
	}
}

// passFirst passes on the earliest record.
func (o *order) passFirst(next func(*record)) {
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

// queue sorts records by time, and records of the same time by their arrival.
type queue []queued

// Len implements heap.Interface.
func (q queue) Len() int { return len(q) }

// Less implements heap.Interface.
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}

// Swap implements heap.Interface.
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	one, _ := x.(queued)
	*q = append(*q, one)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
