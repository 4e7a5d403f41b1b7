package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// takeLocal decides by a bucket of this node only.
func takeLocal(l *Limiter, req *Request, h *Hit, now quota.Instant, do mode) ruling {
	return l.takeBucket(req, h, nodeBucket{params: h.limit.Params}, now, do)
}

// takeBucket decides by a bucket of this node's own, which may be its share of a central bucket.
func (l *Limiter) takeBucket(req *Request, h *Hit, part nodeBucket, now quota.Instant, do mode) ruling {
	out, err := l.changeBucket(req, h, part, now, do)
	if err != nil {
		return contended
	}
	if out.turned {
		l.Stats.TooManyWaiting++
		return h.refuse(policy.ReasonTooManyWaiting, quota.Second)
	}
	h.Known, h.Remaining = true, out.remaining
	h.Reset, h.Retry = quota.Span(max(out.fullAt-now, 0)), out.result.RetryAfter
	if !out.result.Allowed {
		h.doubt = out.heir
		return h.refuse(h.bucketReason(), h.Retry)
	}
	h.passed = do == charge
	if do == charge && !part.isShare {
		l.reserve(req, h, out.taken)
	}
	if do == charge && part.isShare && h.Cost > 0 {
		if owed := l.leases.Owe(now, h.need, &h.ticket, h.holdsAtMost()); owed != nil {
			l.reserveCentral(req, h, owed)
		}
	}
	if do == charge && h.queued {
		h.release, h.params, h.after = now+quota.Instant(out.delay), l.local.used, l.local.after
	}
	return passes
}

// changeBucket checks a bucket of this node's own, or charges it.
func (l *Limiter) changeBucket(req *Request, h *Hit, part nodeBucket, now quota.Instant, do mode) (*outcome, error) {
	change := bucketChange{generation: req.generation(&h.Hit), now: now, cost: h.Cost, charge: do == charge}
	if h.limit.Algorithm.Windowed() && !part.isShare {
		return l.changeWindows(req, h, change)
	}
	kind := bucketstore.Local
	if part.isShare {
		kind = bucketstore.Share
	}
	if h.limit.Own > 0 {
		return l.changeFigures(req, h, change, kind, part)
	}
	t := &l.local
	*t = tokenChange{bucketChange: change, bucket: part}
	t.owing = h.commit != nil
	t.crowded = h.limit.Algorithm.Queues() && !h.Shadow && l.delays.Full()
	l.store.Figures = bucketstore.Figures{Params: part.params}
	return &t.outcome, t.storeError(l.store.Update(kind, h.Key, now, t))
}

// changeFigures does the same as changeBucket, for callers with their own figures.
func (l *Limiter) changeFigures(
	req *Request, h *Hit, do bucketChange, kind bucketstore.Kind, part nodeBucket,
) (*outcome, error) {
	most, c := req.rules.Index.Limit(h.Limit), &l.figures
	*c = figuresChange{bucketChange: do, most: most.Params, mark: markOf(most), bucket: part}
	if part.isShare {
		c.most = lease.Share(c.most, l.leases.Nodes())
	}
	l.store.Figures = bucketstore.Figures{Own: c.mark}
	return &c.outcome, c.storeError(l.store.Update(kind, h.Key, do.now, c))
}

// changeWindows checks a bucket that counts in windows, or charges it.
func (l *Limiter) changeWindows(req *Request, h *Hit, do bucketChange) (*outcome, error) {
	c := &l.window
	*c = windowChange{bucketChange: do, windows: h.limit.WindowsOf(h.Key)}
	if h.limit.Own > 0 { // Callers with their own figures share one bucket with the largest figures.
		c.windows, c.quota = req.rules.Index.Limit(h.Limit).WindowsOf(h.Key), h.limit.Quota
	}
	if h.limit.Calendar {
		c.ahead = l.Ahead
	}
	l.store.Figures = bucketstore.Figures{Windows: c.windows}
	return &c.outcome, c.storeError(l.store.Update(bucketstore.Window, h.Key, do.now, c))
}
