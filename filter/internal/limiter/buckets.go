package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// seen is what a change has seen of a bucket of this node's own.
type seen struct {
	result    quota.Result
	remaining int64
	// fullAt is when the bucket will be full, by the caller's clock.
	fullAt quota.Instant
	// delay is how long the bucket's debt before this request takes to drain. turned: the request would have had to wait, and must
	// not.
	delay  quota.Span
	turned bool
}

// take is what a change does that looks at such a bucket, and with commit charges it.
type take struct {
	seen
	generation uint64
	now        quota.Instant
	cost       int64
	commit     bool
}

// charges says whether tokens were taken.
func (t *take) charges() bool { return t.commit && t.result.Allowed && t.cost > 0 }

// needed is a failure to store as far as it matters: who takes nothing is decided all the same, and only what would have been
// remembered is lost.
func (t *take) needed(err error) error {
	if t.charges() {
		return err
	}
	return nil
}

// share is how this node's share of a central bucket starts in a failure. The zero value is no share.
type share struct {
	// of: it is a share. The failure began at since, and the whole bucket held at most holds by what the node knows.
	of    bool
	since quota.Instant
	holds int64
	// empty: a share that was never used starts without a token.
	empty bool
}

// share is how the hit's share starts: at what the node knows of the bucket, and full if it knows nothing.
func (h *Hit) share(p quota.Params) share {
	s := share{of: true, since: h.since, holds: p.Burst, empty: h.empty}
	if h.heard {
		s.holds = min(h.holds, p.Burst)
	}
	return s
}

// begin is the state with which a share that was not used yet in this failure goes on. It is never fuller than it was.
func (s *share) begin(p quota.Params, is quota.State, now quota.Instant) quota.State {
	is = p.Refill(is, now)
	is.Debt = max(is.Debt, p.UnitsFor(p.Burst-min(s.holds, p.Burst)))
	return is
}

// takeLocal looks at one of this node's own buckets, the share of a central one included, and with commit charges it.
func (l *Limiter) takeLocal(req *Request, m *match.Hit, part share, params quota.Params, now quota.Instant, commit bool) (*seen, error) {
	limit := req.LimitOf(m)
	do := take{generation: req.generation(m), now: now, cost: m.Cost, commit: commit}
	if limit.Algorithm.Windowed() && !part.of {
		t := &l.window
		*t = windowTake{take: do, windows: limit.WindowsOf(m.Key)}
		if limit.Own > 0 { // Callers with figures of their own share one bucket of the largest.
			t.windows, t.quota = req.rules.Index.Limit(m.Limit).WindowsOf(m.Key), limit.Quota
		}
		if limit.Calendar {
			t.ahead = l.Ahead
		}
		l.store.Figures = bucketstore.Figures{Windows: t.windows}
		return &t.seen, t.needed(l.store.Update(bucketstore.Window, m.Key, now, t))
	}
	kind := bucketstore.Local
	if part.of {
		kind = bucketstore.Share
	}
	if limit.Own > 0 {
		return l.takeOwn(m, req.rules.Index.Limit(m.Limit), do, kind, part, params)
	}
	t := &l.local
	*t = localTake{take: do, params: params, share: part}
	t.crowded = limit.Algorithm == quota.LeakyBucket && !m.Shadow && l.delays.Full()
	l.store.Figures = bucketstore.Figures{Params: params}
	return &t.seen, t.needed(l.store.Update(kind, m.Key, now, t))
}

// takeOwn is takeLocal where callers bring figures of their own.
func (l *Limiter) takeOwn(m *match.Hit, most *policy.Limit, do take, kind bucketstore.Kind, part share, params quota.Params) (*seen, error) {
	t := &l.own
	*t = ownTake{take: do, params: params, most: most.Params, mark: markOf(most), share: part}
	if part.of {
		t.most = lease.Share(t.most, l.desk.Nodes())
	}
	l.store.Figures = bucketstore.Figures{Own: t.mark}
	return &t.seen, t.needed(l.store.Update(kind, m.Key, do.now, t))
}

// localTake is the change that takes tokens.
type localTake struct {
	take
	params  quota.Params
	crowded bool
	share   share

	// used are the figures that the bucket is counted in, after is its state behind this request.
	used  quota.Params
	after quota.State
}

// Apply implements bucketstore.Change.
func (t *localTake) Apply(e *bucketstore.Entry) bool {
	s := t.fit(e)
	p := t.used
	if t.share.of && (e.New || e.State.Last < t.share.since) {
		if s = t.share.begin(p, s, t.now); e.New && t.share.empty {
			s = p.Empty(t.now)
		}
	}
	t.delay = p.Delay(s, t.now)
	if t.turned = t.crowded && t.delay > 0 && t.cost > 0; t.turned {
		return false
	}
	t.after, t.result = p.Take(s, t.now, t.cost)
	if !t.commit {
		t.after = p.Refill(s, t.now)
	}
	t.remaining, t.fullAt = p.Remaining(t.after), t.now+quota.Instant(p.ResetAfter(t.after, t.now))
	// An entry that starts in debt is stored also when it refuses, so that it can refill.
	stores := t.charges() || e.New && t.after.Debt > 0 && !t.result.Allowed
	if stores {
		e.State, e.Params, e.Generation, e.Limit = t.after, p, max(e.Generation, t.generation), 0
	}
	return stores
}

// fit sets the figures that the bucket is counted in from now on, and returns its state in them.
func (t *localTake) fit(e *bucketstore.Entry) quota.State {
	t.used = t.params
	switch {
	case e.New:
		return quota.State{Debt: owed(t.params, e.Debtor, t.now), Last: t.now}
	case e.Params == t.params:
		return e.State
	case t.generation >= e.Generation:
		return e.Params.Convert(e.State, t.now, t.params)
	}
	// A worker that has an older policy set than the bucket never converts it back.
	t.used = e.Params
	return e.State
}

// windowTake is the change that counts in windows.
type windowTake struct {
	take
	windows quota.Windows
	// quota is the caller's own; 0 for that of the windows.
	quota int64
	// ahead is by how much the bucket's clock is ahead of now.
	ahead quota.Span
}

// Apply implements bucketstore.Change.
func (t *windowTake) Apply(e *bucketstore.Entry) bool {
	w, h, now := t.windows, &e.History, t.now+quota.Instant(t.ahead)
	generation := t.generation
	back := t.ahead != 0 && !e.New && e.Windows.SetBack(h, now)
	switch {
	case e.New && e.Debtor > t.now:
		*h = w.Owing(now, e.Debtor+quota.Instant(t.ahead), e.Owes)
	case e.New:
	case e.Windows != w && t.generation >= e.Generation:
		e.Windows.Convert(h, now, w)
	case e.Windows != w:
		w, generation = e.Windows, e.Generation
	}
	held := w
	if t.quota > 0 {
		w.Quota = min(w.Quota, t.quota)
	}
	w.Advance(h, now)
	t.remaining, t.fullAt = w.Remaining(h), t.now+quota.Instant(w.ResetAfter(h, now))
	indebted := e.New && len(h.Marks) > 0
	if t.result = w.Take(h, now, t.cost); t.commit {
		t.remaining, t.fullAt = w.Remaining(h), t.now+quota.Instant(w.ResetAfter(h, now))
	}
	e.Windows, e.Generation, e.Ahead = held, generation, t.ahead
	return t.charges() || (back || indebted) && !t.result.Allowed
}

// owed is the debt of a bucket that is not full before debtor.
func owed(p quota.Params, debtor, now quota.Instant) int64 {
	if debtor <= now {
		return 0
	}
	whole := p.Burst * p.Den
	if int64(debtor-now) > whole/p.Num {
		return whole
	}
	return int64(debtor-now) * p.Num
}
