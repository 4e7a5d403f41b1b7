package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/shared/quota"
)

// windowChange is the change of a bucket that counts in windows.
type windowChange struct {
	bucketChange
	windows quota.Windows
	// quota is the caller's own quota; 0 if the quota of windows holds.
	quota int64
	// ahead is the time by which the bucket's clock is ahead of now.
	ahead quota.Span
}

// Apply implements bucketstore.Change.
func (c *windowChange) Apply(e *bucketstore.Entry) bool {
	w, h, now := c.windows, &e.History, c.now+quota.Instant(c.ahead)
	generation := c.generation
	c.heir = e.Heir
	// After a calendar's clock was set back, marks would be in the future.
	converted := c.ahead != 0 && !e.New && e.Windows.SetBack(h, now)
	switch {
	case e.New && e.Debtor > c.now:
		*h = w.Owing(now, e.Debtor+quota.Instant(c.ahead), e.Owes)
	case e.New:
	case e.Windows != w && c.generation >= e.Generation:
		e.Windows.Convert(h, now, w)
		converted = true
	case e.Windows != w: // A worker with an older policy set than the bucket.
		w, generation = e.Windows, e.Generation
	}
	counted := w
	if c.quota > 0 {
		w.Quota = min(w.Quota, c.quota)
	}
	w.Advance(h, now)
	c.noteLevel(w, h, now)
	indebted := e.New && len(h.Marks) > 0
	c.result = w.Take(h, now, c.cost)
	c.taken = quota.Reservation{From: h.Last, At: h.Last, Tokens: c.cost}
	if c.charge {
		c.noteLevel(w, h, now)
	}
	e.Windows, e.Generation, e.Ahead = counted, generation, c.ahead
	// Figures found by a refused request are stored if the next request cannot compute them again.
	return c.hasCharged() || (converted || indebted) && !c.result.Allowed
}

// noteLevel sets the tokens left, and when the bucket is full.
func (c *windowChange) noteLevel(w quota.Windows, h *quota.History, now quota.Instant) {
	c.remaining, c.fullAt = w.Remaining(h), c.now+quota.Instant(w.ResetAfter(h, now))
}
