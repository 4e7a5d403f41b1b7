package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// maxPending bounds the buckets that a VM keeps in mind to report. What does not fit is
	// reported when the bucket is used again.
	maxPending = 4096
	// assumedNodes is how many nodes there may be as long as the control plane has not said.
	assumedNodes = 64
)

// never is the instant at which a bucket without anything to report is due.
const never = quota.Instant(quota.Never)

// reports are what this VM has used of optimistic buckets and the control plane does not know. No
// request waits for them. The zero value is empty.
type reports struct {
	// nodes is how many nodes there are; 0: that is not known.
	nodes int64
	// pending are the buckets with something to report, byBucket the same ones by their keys.
	pending  []*pending
	byBucket map[keyhash.Key]*pending
}

// pending is a bucket with something to report.
type pending struct {
	need Need
	// at is when to report.
	at quota.Instant
	// done: there is nothing to report any more.
	done bool
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
	if r.byBucket == nil {
		r.byBucket = make(map[keyhash.Key]*pending)
	}
	p := r.byBucket[need.Bucket]
	if p == nil {
		if len(r.byBucket) >= maxPending {
			return
		}
		p = &pending{done: true}
		r.byBucket[need.Bucket] = p
		r.pending = append(r.pending, p)
	}
	if p.done {
		p.done, p.at = false, at
	}
	p.need, p.at = need, min(p.at, at)
}

// gather starts the reports that are due, as many as one call can carry.
func (r *reports) gather(now quota.Instant, store *bucketstore.Store) []item {
	if len(r.pending) == 0 {
		return nil
	}
	var items []item
	start := &startReport{now: now}
	rest := r.pending[:0]
	for _, p := range r.pending {
		fits := len(items) == 0 || len(items) < wire.MaxItems && items[0].need.Version == p.need.Version
		if !p.done && p.at <= now && fits {
			start.need, start.slack = &p.need, r.slack(p.need.Params)
			if err := store.Update(bucketstore.Optimistic, p.need.Bucket, now, start); err != nil {
				p.at = now + quota.Instant(quota.Millisecond)
			} else if start.used > 0 {
				need := p.need
				need.Cost = 1
				items = append(items, item{need: need, used: start.used, report: start.sent})
				p.at = now + quota.Instant(lease.Patience) // Another report if no answer comes.
			} else { // Another worker has reported it.
				p.at, p.done = start.due, start.due == never
			}
		}
		if p.done {
			delete(r.byBucket, p.need.Bucket)
		} else {
			rest = append(rest, p)
		}
	}
	clear(r.pending[len(rest):])
	r.pending = rest
	return items
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
			p.done = true
		}
	default:
		apply := applyReport{
			need: &it.need, now: now, sent: it.report, slack: r.slack(it.need.Params), debt: a.Debt,
		}
		err := store.Update(bucketstore.Optimistic, it.need.Bucket, now, &apply)
		if err == nil && p != nil {
			p.at, p.done = apply.due, apply.due == never
		}
	}
}
