package leasing

import (
	"container/heap"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// agenda is the list of buckets for which a VM must act later, in order of time. The zero value is
// empty.
type agenda struct {
	// pending is a heap of the buckets with work to do, by the instants at which they are due.
	// byBucket finds the same entries by key.
	pending  pendings
	byBucket map[keyhash.Key]*pending
	// spare are unused entries for further buckets. aside are entries that setAside took out.
	spare, aside []*pending
}

// pending is a bucket with work to do.
type pending struct {
	need Need
	// at is when the bucket is due.
	at quota.Instant
	// underWay: a report has no answer yet. Then at is when to send the report again.
	underWay bool
	// index is the entry's index in agenda.pending.
	index int
}

// note schedules a bucket for an instant. An earlier instant that is noted already stays.
func (g *agenda) note(need Need, at quota.Instant) {
	p := g.byBucket[need.Bucket]
	if p == nil {
		if len(g.pending) < maxPending {
			g.addPending(need, at)
		}
		return
	}
	p.need = need
	if at < p.at {
		g.reschedule(p, at)
	}
}

// addPending appends a bucket that the agenda does not have yet.
func (g *agenda) addPending(need Need, at quota.Instant) {
	if g.byBucket == nil {
		g.byBucket = make(map[keyhash.Key]*pending)
	}
	p := &pending{}
	if last := len(g.spare) - 1; last >= 0 {
		p = g.spare[last]
		g.spare = g.spare[:last]
	}
	p.need, p.at, p.underWay = need, at, false
	g.byBucket[need.Bucket] = p
	heap.Push(&g.pending, p)
}

// reschedule moves a bucket to another instant. quota.Forever removes it from the agenda.
func (g *agenda) reschedule(p *pending, at quota.Instant) {
	p.at, p.underWay = at, false
	if at == quota.Forever {
		heap.Remove(&g.pending, p.index)
		delete(g.byBucket, p.need.Bucket)
		g.spare = append(g.spare, p)
		return
	}
	heap.Fix(&g.pending, p.index)
}

// setAside takes the first bucket out of the agenda until putBack.
func (g *agenda) setAside() {
	g.aside = append(g.aside, heap.Pop(&g.pending).(*pending))
}

// putBack puts back the buckets that were set aside.
func (g *agenda) putBack() {
	for _, p := range g.aside {
		heap.Push(&g.pending, p)
	}
	clear(g.aside)
	g.aside = g.aside[:0]
}

// pendings implements heap.Interface by the instants at which buckets are due.
type pendings []*pending

// Len implements heap.Interface.
func (h pendings) Len() int { return len(h) }

// Less implements heap.Interface.
func (h pendings) Less(i, j int) bool { return h[i].at < h[j].at }

// Swap implements heap.Interface.
func (h pendings) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index = i
	h[j].index = j
}

// Push implements heap.Interface.
func (h *pendings) Push(x any) {
	p := x.(*pending)
	p.index = len(*h)
	*h = append(*h, p)
}

// Pop implements heap.Interface.
func (h *pendings) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return p
}
