package leasing

import (
	"container/heap"

	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// maxPending bounds the buckets that a VM keeps in mind to report. What does not fit is
	// reported when the bucket is used again. From crowded on reports leave before they are due.
	maxPending = 8192
	crowded    = maxPending / 2
	// reportAhead is how early a bucket is reported with others, so that calls are full.
	reportAhead = lease.ReportEvery
	// reportCalls bounds the calls with reports that leave at once, after an outage above all.
	reportCalls = 4
	// assumedNodes is how many nodes there may be as long as the control plane has not said.
	assumedNodes = 64
)

// reports are what this VM has used of optimistic buckets and the control plane does not know. No
// request waits for them. The zero value is empty.
type reports struct {
	// nodes is how many nodes there are; 0: that is not known.
	nodes int64
	// underWay is how many calls with reports are.
	underWay int
	// pending are the buckets with something to report, the first one that is due in front;
	// byBucket are the same ones by their keys.
	pending  pendings
	byBucket map[keyhash.Key]*pending
	// spare are free for further buckets, aside is reused.
	spare, aside []*pending
}

// pending is a bucket with something to report.
type pending struct {
	need Need
	// at is when to report.
	at quota.Instant
	// underWay: a report has no answer yet; at is when to make it again.
	underWay bool
	// index is its index among pending.
	index int
}

// slack is what this node may use of a bucket before the control plane knows.
func (r *reports) slack(p quota.Params) int64 {
	if r.nodes == 0 {
		return lease.Slack(p, assumedNodes)
	}
	return lease.Slack(p, r.nodes)
}

// note has a bucket reported at an instant.
func (r *reports) note(need Need, at quota.Instant) {
	p := r.byBucket[need.Bucket]
	if p == nil {
		if len(r.pending) < maxPending {
			r.add(need, at)
		}
		return
	}
	p.need = need
	if at < p.at {
		r.move(p, at)
	}
}

func (r *reports) add(need Need, at quota.Instant) {
	if r.byBucket == nil {
		r.byBucket = make(map[keyhash.Key]*pending)
	}
	p := &pending{}
	if last := len(r.spare) - 1; last >= 0 {
		p = r.spare[last]
		r.spare = r.spare[:last]
	}
	p.need, p.at, p.underWay = need, at, false
	r.byBucket[need.Bucket] = p
	heap.Push(&r.pending, p)
}

// move has a bucket reported at another instant; never: not at all.
func (r *reports) move(p *pending, at quota.Instant) {
	p.at, p.underWay = at, false
	if at == quota.Forever {
		heap.Remove(&r.pending, p.index)
		delete(r.byBucket, p.need.Bucket)
		r.spare = append(r.spare, p)
		return
	}
	heap.Fix(&r.pending, p.index)
}

// next is when gather has something to do; never if there is nothing to report.
func (r *reports) next() quota.Instant {
	switch {
	case len(r.pending) == 0:
		return quota.Forever
	case len(r.pending) >= crowded:
		return 0
	}
	return r.pending[0].at
}

// gather starts the reports that are due, as many as one call can carry, and fills it up with those
// that will soon be. It leaves out buckets that requests have asked about: what such an answer
// grants and no request may use stands for what would be reported.
func (r *reports) gather(now quota.Instant, store *bucketstore.Store, q *queue) []item {
	if now < r.next() {
		return nil
	}
	start := &startReport{now: now, upTo: now + quota.Instant(reportAhead)}
	if len(r.pending) >= crowded {
		start.upTo = quota.Forever - 1
	}
	items := make([]item, 0, min(len(r.pending), wire.MaxItems))
	for len(items) < wire.MaxItems && len(r.pending) > 0 && r.pending[0].at <= start.upTo {
		p := r.pending[0]
		if !sameSet(items, p.need.Version) || p.underWay && p.at > now {
			r.setAside()
			continue
		}
		if q.isAsked(p.need.Bucket) {
			p.at = max(p.at, now+quota.Instant(quota.Millisecond))
			r.setAside()
			continue
		}
		start.need, start.slack = &p.need, r.slack(p.need.Params)
		err := store.Update(bucketstore.Optimistic, p.need.Bucket, now, start)
		switch {
		case err != nil:
			p.at = now + quota.Instant(quota.Millisecond)
			r.setAside()
		case start.used > 0:
			need := p.need
			need.Cost = 1
			items = append(items, item{need: need, used: start.used, report: start.sent})
			p.at, p.underWay = now+quota.Instant(lease.Patience), true
			r.setAside()
		case start.due == quota.Forever: // Another worker has reported it.
			r.move(p, quota.Forever)
		default:
			p.at, p.underWay = start.due, false
			r.setAside()
		}
	}
	for _, p := range r.aside {
		heap.Push(&r.pending, p)
	}
	clear(r.aside)
	r.aside = r.aside[:0]
	return items
}

// setAside takes the first bucket out until gather is through.
func (r *reports) setAside() {
	r.aside = append(r.aside, heap.Pop(&r.pending).(*pending))
}

// answer takes in the answer to a report. A bucket that the control plane does not know is reported
// again under the policy set that is in force by then, or not at all if it is not used any more. A
// report whose answer cannot be noted is made again, and counts twice: too little is admitted.
func (r *reports) answer(it *item, a *wire.LeaseAnswer, now quota.Instant, store *bucketstore.Store) {
	p := r.byBucket[it.need.Bucket]
	switch a.State {
	case wire.ItemUnavailable:
		// It is reported again, as if no answer had come.
	case wire.ItemUnknown:
		if p != nil {
			r.move(p, quota.Forever)
		}
	default:
		apply := applyReport{
			need: &it.need, now: now, sent: it.report, slack: r.slack(it.need.Params), debt: a.Debt,
		}
		err := store.Update(bucketstore.Optimistic, it.need.Bucket, now, &apply)
		if err == nil && p != nil {
			r.move(p, apply.due)
		}
	}
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
