package lease

import "github.com/weir-proxy/weir/shared/quota"

// A node's knowledge of a leased or strict bucket: how many tokens are left, and which requests the
// node refuses by itself.

// Left returns how many tokens clients of the node can still use as far as it knows: the control
// plane's tokens and the node's own. It reports false before the first answer.
//
// For a bucket of tokens this also follows from FullAt, and spending here does not change FullAt.
// The node does not know which tokens a window algorithm gets back before it is full.
func (c Credit) Left(now quota.Instant, p quota.Params, windowed bool) (n int64, known bool) {
	n, known = c.Holds(now, p)
	switch {
	case !known || now >= c.FullAt:
		return p.Burst, known
	case windowed:
		n = c.Level
	default:
		missing := int64(min(quota.Span(c.FullAt-now), p.Window())) * p.Num
		n = max(n, p.Remaining(quota.State{Debt: missing}))
	}
	return min(n+c.Available(now), p.Burst), true
}

// Lacks returns how long a request of cost n, at most the burst, has to wait as far as the node
// knows: until then the bucket cannot hold n tokens. It is 0 if the bucket may hold them, or if
// nothing is known. For a window algorithm the node knows only when the whole quota is back.
func (c Credit) Lacks(now quota.Instant, p quota.Params, n int64, windowed bool) quota.Span {
	until, refused := c.Refused(now, p, n, windowed)
	if refused {
		return quota.Span(until - now)
	}
	left, known := c.Left(now, p, windowed)
	switch {
	case !known || left >= n:
		return 0
	case windowed:
		return quota.Span(c.FullAt - now)
	}
	return max(quota.Span(c.whenHolds(now, p, n)-now), 0) + Untold
}

// Untold is the longest time that tokens for waiting requests count as leased, and so keep a full
// bucket from refilling. The level of an answer does not show this.
const Untold = (waitingPieces + 1) * Deadline

// whenHolds returns when the control plane holds the tokens that are missing for a cost of n,
// beside the node's own tokens.
func (c Credit) whenHolds(now quota.Instant, p quota.Params, n int64) quota.Instant {
	return c.FullAt - refillTime(p, n-c.Available(now))
}

// Refused reports whether a request of cost n must be refused without asking, because the control
// plane has no tokens for it before the returned instant. In windows the node knows this only for
// the cost that was refused, and for a cost above the burst it knows nothing. Where other nodes may
// have given tokens back the node asks before that instant. A rationed bucket names no wait. The
// node then refuses a cost that the bucket holds again within the shortest wait, whatever other
// nodes have used since; otherwise it asks for the wait.
func (c Credit) Refused(now quota.Instant, p quota.Params, n int64, windowed bool) (quota.Instant, bool) {
	if now >= c.NotBefore || n < c.DenyCost || n > p.Burst || windowed && n > c.DenyCost {
		return 0, false
	}
	if c.Recheck && now >= c.AskAfter {
		return 0, false
	}
	rationed := c.NotBefore == c.AskAfter
	if windowed || n == c.DenyCost && !rationed {
		return c.NotBefore, true
	}
	holds := c.whenHolds(now, p, n)
	if rationed {
		if holds += quota.Instant(Untold); holds > now+quota.Instant(shortestRetry) || p.Earned(shortestRetry) < n {
			return 0, false
		}
	}
	return max(c.NotBefore, holds), true
}

// Reopen forgets a refusal if tokens have come back and may be enough.
func (c Credit) Reopen(now quota.Instant) Credit {
	if c.Level+c.Available(now) >= c.DenyCost {
		c.NotBefore = 0
	}
	return c
}

// recordRefusal records a refusal that the node repeats by itself until an instant. A refusal of a
// lower cost that is in force stays, because it holds for more requests. When the wait is over, a
// token bucket holds the cost and lacks the rest. For windows the answer contains when the whole
// quota is back: only a longer wait counts, and a difference within the time of an answer does not.
func (c *Credit) recordRefusal(now quota.Instant, ask Ask, g Grant, until quota.Instant) {
	if g.FullAfter == 0 {
		c.FullAt = now + quota.Instant(g.NotBefore) + refillTime(ask.Params, ask.Cost)
	} else {
		if until > c.FullAt && until-c.FullAt <= quota.Instant(Deadline) {
			until = c.FullAt
		}
		c.FullAt = max(c.FullAt, until)
	}
	if now >= c.NotBefore || ask.Cost <= c.DenyCost {
		c.NotBefore, c.DenyCost = until, ask.Cost
	}
}

// looksOnly reports whether the ask only wants to know how long Cost has to wait.
func (a Ask) looksOnly() bool { return a.Waiting <= 0 && a.Keep <= 0 && a.Used == 0 }
