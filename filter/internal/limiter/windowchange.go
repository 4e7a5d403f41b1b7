package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/quota"
)

// windowChange is the change that counts in windows.
type windowChange struct {
	bucketChange
	windows quota.Windows
	// quota is the caller's own; 0 for that of the windows.
	quota int64
	// ahead is by how much the bucket's clock is ahead of now.
	ahead quota.Span
}

// Apply implements bucketstore.Change.
func (c *windowChange) Apply(e *bucketstore.Entry) bool {
	w, h, now := c.windows, &e.History, c.now+quota.Instant(c.ahead)
	generation := c.generation
	c.heir = e.Heir
	// A calendar's clock that was set back would leave marks in the future.
	moved := c.ahead != 0 && !e.New && e.Windows.SetBack(h, now)
	switch {
	case e.New && e.Debtor > c.now:
		*h = w.Owing(now, e.Debtor+quota.Instant(c.ahead), e.Owes)
	case e.New:
	case e.Windows != w && c.generation >= e.Generation:
		e.Windows.Convert(h, now, w)
		moved = true
	case e.Windows != w: // A worker that has an older policy set than the bucket.
		w, generation = e.Windows, e.Generation
	}
	counted := w
	if c.quota > 0 {
		w.Quota = min(w.Quota, c.quota)
	}
	w.Advance(h, now)
	c.describe(w, h, now)
	indebted := e.New && len(h.Marks) > 0
	c.result = w.Take(h, now, c.cost)
	c.taken = quota.Reservation{From: h.Last, At: h.Last, Tokens: c.cost}
	if c.charge {
		c.describe(w, h, now)
	}
	e.Windows, e.Generation, e.Ahead = counted, generation, c.ahead
	// What a refused request has found is stored if the next one cannot find it again.
	return c.charged() || (moved || indebted) && !c.result.Allowed
}

func (c *windowChange) describe(w quota.Windows, h *quota.History, now quota.Instant) {
	c.remaining, c.fullAt = w.Remaining(h), c.now+quota.Instant(w.ResetAfter(h, now))
}
