package lease

import "github.com/weir-proxy/weir/shared/quota"

// What a node knows of a leased or strict bucket without asking: how much is left, and what it
// refuses by itself.

// Left is how many tokens clients of the node can still use as far as it knows: what the control
// plane holds, and what is in hand. It reports false before the first answer.
//
// For a bucket of tokens FullAt says it as well as Holds, and spending here does not set that back.
// What a window algorithm gets back before it is full the node does not know.
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

// Lacks is how long a request of cost n, at most the burst, has to wait as far as the node knows:
// until then the bucket cannot hold so much. It is 0 if it may, and if nothing is known. For a
// window algorithm the node knows only when all of the quota is back.
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

// Untold is how long tokens that requests waited for count as leased at most, and so keep a full
// bucket from refilling. The level of an answer does not tell.
const Untold = (waitingPieces + 1) * Deadline

// whenHolds is when the control plane holds what a bucket of tokens lacks for a cost of n beside
// the tokens in hand.
func (c Credit) whenHolds(now quota.Instant, p quota.Params, n int64) quota.Instant {
	return c.FullAt - refill(p, n-c.Available(now))
}

// Refused reports whether a request of cost n must be refused without asking, because the control
// plane has no tokens for it before the returned instant. In windows the node knows that only for
// the cost that was refused, and about a cost above the burst it knows nothing. Where other nodes
// may have given tokens back it asks before. A bucket that is rationed has said nothing of a wait:
// the node refuses what it holds again within the shortest wait, whatever other nodes have used of
// it since, and asks for how long otherwise.
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

// Reopen forgets a refusal that tokens which have come back make untrue: what is left may be
// enough.
func (c Credit) Reopen(now quota.Instant) Credit {
	if c.Level+c.Available(now) >= c.DenyCost {
		c.NotBefore = 0
	}
	return c
}

// deny takes in a refusal that the node repeats by itself until an instant. One of a cheaper
// request that is in force stays, because it is of use to more requests. When the wait is over, a
// token bucket holds the cost and lacks the rest. For windows the answer has said when all is back:
// only a longer wait counts, and a difference within the time of an answer does not.
func (c *Credit) deny(now quota.Instant, ask Ask, g Grant, until quota.Instant) {
	if g.FullAfter == 0 {
		c.FullAt = now + quota.Instant(g.NotBefore) + refill(ask.Params, ask.Cost)
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

// looks reports whether the ask wants nothing but to know how long Cost has to wait.
func (a Ask) looks() bool { return a.Waiting <= 0 && a.Keep <= 0 && a.Used == 0 }
