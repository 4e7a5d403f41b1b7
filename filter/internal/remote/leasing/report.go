package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// maxPending bounds the buckets with reports to make. A bucket beyond it is noted when it is
	// used again. From crowded on, reports leave before they are due.
	maxPending = 8192
	crowded    = maxPending / 2
	// reportAhead is the time before its due instant from which a report joins a call of other
	// reports, so that calls are full.
	reportAhead = lease.ReportEvery
	// reportCalls bounds the calls with reports that leave at once, above all after an outage.
	reportCalls = 4
	// assumedNodes is the number of nodes to assume until the control plane sends the number.
	assumedNodes = 64
)

// reports are the buckets with used tokens that the control plane does not know. No request waits
// for a report. The zero value is empty.
type reports struct {
	// nodes is the number of nodes; 0: not known yet.
	nodes int64
	// underWay is the number of calls with reports under way.
	underWay int
	agenda
}

// slack returns the number of a bucket's tokens that this node may use before it reports them.
func (r *reports) slack(p quota.Params) int64 {
	if r.nodes == 0 {
		return lease.Slack(p, assumedNodes)
	}
	return lease.Slack(p, r.nodes)
}

// nextDue returns when gather has something to do; never if there is nothing to report.
func (r *reports) nextDue() quota.Instant {
	switch {
	case len(r.pending) == 0:
		return quota.Forever
	case len(r.pending) >= crowded:
		return 0
	}
	return r.pending[0].at
}

// gatherItems starts the reports that are due, up to wire.MaxItems, and adds reports that will be
// due soon. It skips buckets that waiting requests have asked about: tokens that such an answer
// grants and no request can use replace a report of the same number.
func (r *reports) gatherItems(now quota.Instant, store *bucketstore.Store, q *queue) []item {
	if now < r.nextDue() {
		return nil
	}
	// If too many buckets are pending, all reports leave early.
	start := &startReport{now: now, upTo: now + quota.Instant(reportAhead)}
	if len(r.pending) >= crowded {
		start.upTo = quota.Forever - 1
	}
	items := make([]item, 0, min(len(r.pending), wire.MaxItems))
	for len(items) < wire.MaxItems && len(r.pending) > 0 && r.pending[0].at <= start.upTo {
		p := r.pending[0]
		// A report of another policy set, or one whose answer is awaited, waits.
		if !sameSet(items, p.need.Version) || p.underWay && p.at > now {
			r.setAside()
			continue
		}
		if q.isAsked(p.need.Bucket) {
			p.at = max(p.at, now+quota.Instant(quota.Millisecond))
			r.setAside()
			continue
		}
		// Start the report in the bucket's entry, if it is still due there.
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
			r.reschedule(p, quota.Forever)
		default:
			p.at, p.underWay = start.due, false
			r.setAside()
		}
	}
	r.putBack()
	return items
}

// takeInAnswer takes in the answer to a report. A bucket that the control plane does not know is
// reported again under the newer policy set, or never if it is not used any more. If the answer
// cannot be stored, the report is sent again and counts twice: then too few requests are admitted.
func (r *reports) takeInAnswer(it *item, a *wire.LeaseAnswer, now quota.Instant, store *bucketstore.Store) {
	p := r.byBucket[it.need.Bucket]
	switch a.State {
	case wire.ItemUnavailable:
		// Nothing to do: the end of the call schedules the report again, as if no answer had come.
	case wire.ItemUnknown:
		if p != nil {
			r.reschedule(p, quota.Forever)
		}
		it.kind = done
	default:
		apply := applyReport{
			need: &it.need, now: now, sent: it.reported, slack: r.slack(it.need.Params), debt: a.Debt,
			doubt: a.Doubt,
		}
		err := store.Update(bucketstore.Optimistic, it.need.Bucket, now, &apply)
		if err == nil && p != nil {
			r.reschedule(p, apply.due)
		}
		it.kind = done
	}
}

// retryReport schedules a report again that, as far as this node knows, was not counted.
func (r *reports) retryReport(it *item, now quota.Instant, store *bucketstore.Store) {
	apply := &reportAgain{need: &it.need, now: now, sent: it.reported}
	if store.Update(bucketstore.Optimistic, it.need.Bucket, now, apply) != nil || apply.due == 0 {
		return
	}
	if p := r.byBucket[it.need.Bucket]; p != nil {
		r.reschedule(p, apply.due)
	}
}
