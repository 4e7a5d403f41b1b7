package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
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
	agenda
}

// slack is what this node may use of a bucket before the control plane knows.
func (r *reports) slack(p quota.Params) int64 {
	if r.nodes == 0 {
		return lease.Slack(p, assumedNodes)
	}
	return lease.Slack(p, r.nodes)
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
			items = append(items, item{kind: reportsUse, need: need, used: start.used, reported: start.sent})
			p.at, p.underWay = now+quota.Instant(lease.Patience), true
			r.setAside()
		case start.due == quota.Forever: // Another worker has reported it.
			r.move(p, quota.Forever)
		default:
			p.at, p.underWay = start.due, false
			r.setAside()
		}
	}
	r.putBack()
	return items
}

// answer takes in the answer to a report. A bucket that the control plane does not know is reported
// again under the policy set that is in force by then, or not at all if it is not used any more. A
// report whose answer cannot be noted is made again, and counts twice: too little is admitted.
func (r *reports) answer(it *item, a *wire.LeaseAnswer, now quota.Instant, store *bucketstore.Store) {
	p := r.byBucket[it.need.Bucket]
	switch a.State {
	case wire.ItemUnavailable:
		// The end of the call has it reported again, as if no answer had come.
	case wire.ItemUnknown:
		if p != nil {
			r.move(p, quota.Forever)
		}
		it.kind = done
	default:
		apply := applyReport{
			need: &it.need, now: now, sent: it.reported, slack: r.slack(it.need.Params), debt: a.Debt,
			doubt: a.Doubt,
		}
		err := store.Update(bucketstore.Optimistic, it.need.Bucket, now, &apply)
		if err == nil && p != nil {
			r.move(p, apply.due)
		}
		it.kind = done
	}
}

// again has a report that was not counted, for all that is known, made again after a while.
func (r *reports) again(it *item, now quota.Instant, store *bucketstore.Store) {
	apply := &reportAgain{need: &it.need, now: now, sent: it.reported}
	if store.Update(bucketstore.Optimistic, it.need.Bucket, now, apply) != nil || apply.due == 0 {
		return
	}
	if p := r.byBucket[it.need.Bucket]; p != nil {
		r.move(p, apply.due)
	}
}
