package leasing

import (
	"container/heap"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// agenda is what a VM has to do for buckets, and when. The zero value is empty.
type agenda struct {
	// pending are the buckets with something to do, the first one that is due in front; byBucket
	// are the same ones by their keys.
	pending  pendings
	byBucket map[keyhash.Key]*pending
	// spare are free for further buckets, aside is reused.
	spare, aside []*pending
}

// pending is a bucket with something to do.
type pending struct {
	need Need
	// at is when to do it.
	at quota.Instant
	// underWay: a report has no answer yet; at is when to make it again.
	underWay bool
	// index is its index among pending.
	index int
}

// note has something done for a bucket at an instant, or sooner if it is noted for an earlier one.
func (g *agenda) note(need Need, at quota.Instant) {
	p := g.byBucket[need.Bucket]
	if p == nil {
		if len(g.pending) < maxPending {
			g.add(need, at)
		}
		return
	}
	p.need = need
	if at < p.at {
		g.move(p, at)
	}
}

func (g *agenda) add(need Need, at quota.Instant) {
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

// move has it done at another instant; never: not at all.
func (g *agenda) move(p *pending, at quota.Instant) {
	p.at, p.underWay = at, false
	if at == quota.Forever {
		heap.Remove(&g.pending, p.index)
		delete(g.byBucket, p.need.Bucket)
		g.spare = append(g.spare, p)
		return
	}
	heap.Fix(&g.pending, p.index)
}

// setAside takes the first bucket out until gather is through.
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
