package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// seen is what a change has seen of a bucket of this node's own.
type seen struct {
	result    quota.Result
	remaining int64
	// fullAt is what the client is told of when the bucket will be full, by the caller's clock.
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

// takeLocal looks at one of this node's own buckets, the share of a central one included, and with commit charges it.
func (l *Limiter) takeLocal(req *Request, m *match.Hit, share bool, params quota.Params, now quota.Instant, commit bool) (*seen, error) {
	limit := req.LimitOf(m)
	do := take{generation: req.generation(m), now: now, cost: m.Cost, commit: commit}
	if limit.Algorithm.Windowed() && !share {
		t := &l.window
		*t = windowTake{take: do, windows: limit.WindowsOf(m.Key)}
		if limit.Calendar {
			t.ahead = l.Ahead
		}
		return &t.seen, t.needed(l.store.Update(bucketstore.Window, m.Key, now, t))
	}
	kind := bucketstore.Local
	if share {
		kind = bucketstore.Share
	}
	t := &l.local
	*t = localTake{take: do, params: params}
	t.crowded = limit.Algorithm == quota.LeakyBucket && !m.Shadow && l.delays.Full()
	if kind == bucketstore.Local && limit.Algorithm == quota.TokenBucket {
		t.held = l.place(kind, &m.Key, now)
	}
	if t.held != nil && t.held.decide(t, &m.Key) {
		return &t.seen, nil
	}
	err := l.store.Update(kind, m.Key, now, t)
	if err == nil && t.held != nil {
		t.held.learn(t, m.Key)
	}
	return &t.seen, t.needed(err)
}

// localTake is the change that takes tokens.
type localTake struct {
	take
	params  quota.Params
	crowded bool
	// held is where the worker keeps what it knows of the bucket; nil if it goes by the shared data alone.
	held *held

	// used are the figures that the bucket is counted in, after its state behind this request, lot the tokens taken in advance, floor the
	// units that others have taken so, and wrote the state that was stored, if any.
	used       quota.Params
	after      quota.State
	lot, floor int64
	wrote      quota.State
	// holdUntil is until when the worker may go by this without looking; 0 if it must not.
	holdUntil quota.Instant
}

// Apply implements bucketstore.Change.
func (t *localTake) Apply(e *bucketstore.Entry) bool {
	p, generation, reset := t.params, t.generation, e.Reset
	holds := t.held != nil && !e.New && e.Params == p
	s, lent := t.held.settle(e, t.now)
	switch {
	case e.New && e.Kind == bucketstore.Share:
		// A full start would hand out up to one more burst at the moment of failure.
		s = p.Empty(t.now)
	case e.New:
		s = quota.State{Debt: owed(p, e.Debtor, t.now), Last: t.now}
	case e.Params != p && t.generation >= e.Generation:
		s, reset = e.Params.Convert(s, t.now, p), quota.Reset{}
	case e.Params != p:
		// A worker that has an older policy set than the bucket never converts it back.
		p, generation = e.Params, e.Generation
	}
	t.delay = p.Delay(s, t.now)
	if t.turned = t.crowded && t.delay > 0 && t.cost > 0; t.turned {
		return false
	}
	var charged quota.State
	if charged, t.result = p.Take(s, t.now, t.cost); t.commit {
		s = charged
	} else {
		s = p.Refill(s, t.now)
	}
	t.used, t.after, t.wrote, t.remaining = p, s, quota.State{}, p.Remaining(s)
	stores := t.conclude(e, lent, reset, holds)
	if stores {
		s.Debt += t.lot * p.Den
		e.State, e.Params, e.Generation, e.Lent = s, p, generation, lent.Add(t.lot)
		t.wrote = s
	}
	return stores
}

// conclude finds out what to tell the client and what the worker may hold, if it may, and whether the bucket is to be stored.
func (t *localTake) conclude(e *bucketstore.Entry, lent bucketstore.Lent, reset quota.Reset, holds bool) (stores bool) {
	t.floor, t.lot, t.holdUntil = t.used.UnitsFor(lent.Tokens()), 0, 0
	var until quota.Instant
	switch {
	case !holds:
	case t.charges():
		if t.lot = t.held.lotFor(t, e, lent); t.lot > 0 {
			until = bucketstore.LentUntil(t.now)
		}
	case !t.result.Allowed:
		until = t.now + quota.Instant(bucketstore.Refusing)
	}
	// An entry that starts in debt is stored also when it refuses, so that it can refill; what was spent of an old lot, so that all tell it.
	stores = t.charges() || until > 0 || e.New && t.after.Debt > 0 && !t.result.Allowed || t.held.lotOf(e) && t.now >= t.held.until
	if stores || reset == (quota.Reset{}) {
		// What others have taken in advance they may not need.
		unlent := quota.State{Debt: max(t.after.Debt-t.floor, 0), Last: t.after.Last}
		reset = reset.Raise(t.now + quota.Instant(t.used.ResetAfter(unlent, t.now)))
	}
	if until > 0 {
		reset, t.holdUntil = reset.Promise(t.now, until)
	}
	t.fullAt, e.Reset = reset.At(t.now), reset
	return stores
}

// windowTake is the change that counts in windows.
type windowTake struct {
	take
	windows quota.Windows
	// ahead is by how much the bucket's clock is ahead of now.
	ahead quota.Span
}

// Apply implements bucketstore.Change.
func (t *windowTake) Apply(e *bucketstore.Entry) bool {
	w, h, now := t.windows, &e.History, t.now+quota.Instant(t.ahead)
	generation := t.generation
	switch {
	case e.New && e.Debtor > t.now:
		*h = w.Owing(now, e.Debtor+quota.Instant(t.ahead))
	case e.New:
	case e.Windows != w && t.generation >= e.Generation:
		e.Windows.Convert(h, now, w)
	case e.Windows != w:
		w, generation = e.Windows, e.Generation
	}
	w.Advance(h, now)
	t.remaining, t.fullAt = w.Remaining(h), t.now+quota.Instant(w.ResetAfter(h, now))
	indebted := e.New && len(h.Marks) > 0
	if t.result = w.Take(h, now, t.cost); t.commit {
		t.remaining, t.fullAt = w.Remaining(h), t.now+quota.Instant(w.ResetAfter(h, now))
	}
	e.Windows, e.Generation, e.Ahead = w, generation, t.ahead
	return t.charges() || indebted && !t.result.Allowed
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
