package quota

// TakeAs spends n tokens of a bucket whose callers bring figures of their own: s was left by a
// caller with the figures was, and this caller has p. It returns the state, and the figures that it
// is counted in from now on, which are p once the cost was charged.
//
// Used tokens stay used, whatever the figures are: the debt is carried over in whole tokens,
// rounded up, and may be more than p's burst. Until a caller with p has been admitted the bucket
// uses the faster of both rates. So a caller who has a lower rate than before waits no longer than
// the bucket takes to have room for it. However callers mix their figures, no more passes than the
// largest burst and the largest rate allow.
func (p Params) TakeAs(was Params, s State, now Instant, n int64) (State, Params, Result) {
	s = was.Drain(s, now)
	if n <= 0 {
		return s, was, Result{Allowed: true}
	}
	own, fits := was.Restate(s, p)
	if n > p.Burst {
		return s, was, Result{RetryAfter: Never}
	}
	if !fits || was != p && !was.SlowerThan(p) && own.Debt > (p.Burst-n)*p.Den {
		return s, was, Result{RetryAfter: ceilDiv(s.Debt-(p.Burst-n)*was.Den, was.Num) + timeBehind(s, now)}
	}
	if over := own.Debt - (p.Burst-n)*p.Den; over > 0 {
		return own, p, Result{RetryAfter: ceilDiv(over, p.Num) + timeBehind(own, now)}
	}
	own.Debt += n * p.Den
	return own, p, Result{Allowed: true}
}

// Drain is Refill without the cap at the burst: s may owe more than a full bucket of these figures,
// because of earlier figures.
func (p Params) Drain(s State, now Instant) State {
	if now <= s.Last {
		return s
	}
	if s.Over > 0 {
		s = p.DrainOver(s, now, s.Last+Instant(ceilDiv(s.Debt, p.Num)))
	}
	dt := int64(now - s.Last)
	s.Last = now
	// The product is formed only if it cannot pass the debt: no overflow after any idle time.
	if s.Debt <= 0 || dt > s.Debt/p.Num {
		s.Debt = 0
		return s
	}
	s.Debt -= dt * p.Num
	return s
}

// Restate returns s in the figures of next, without a cap at their burst. It reports false if they
// cannot express the debt exactly, because it is more than their burst.
func (p Params) Restate(s State, next Params) (State, bool) {
	if p == next {
		return s, true
	}
	tokens := p.TokensIn(s.Debt)
	if tokens > MaxUnits/next.Den {
		return s, false
	}
	s.Debt = tokens * next.Den
	return s, true
}

// Owed returns the wait from now until a bucket that may owe more than it holds is full.
func (p Params) Owed(s State, now Instant) Span {
	s = p.Drain(s, now)
	return ceilDiv(s.Debt, p.Num) + timeBehind(s, now)
}
