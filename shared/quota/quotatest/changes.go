package quotatest

import "github.com/weir-proxy/weir/shared/quota"

// Eras is the promise of a limit that is changed any number of times: in every interval no more is
// used than the largest burst and the largest rate·t of the limits in force in it allow. It shares
// no code with the code under test. The zero value has no limit yet; call Change first.
type Eras struct {
	limits []era
	uses   []use
}

// era is a limit in force since an instant.
type era struct {
	since       quota.Instant
	burst, rate float64
	// slack may be used besides.
	slack float64
}

type use struct {
	at quota.Instant
	n  float64
}

// rounding is how far sums of floats may be off, in tokens.
const rounding = 1e-3

// Change continues with another limit: its burst, its rate, and extra tokens that may be used all
// at once in any interval, such as tokens leased by the limit before. Beside are limits that are in
// force too, as in a rollout.
func (e *Eras) Change(now quota.Instant, p quota.Params, extra int64, beside ...quota.Params) {
	next := era{now, float64(p.Burst + extra), float64(p.Num) / float64(p.Den), 0}
	for _, p := range beside {
		next.burst, next.rate = max(next.burst, float64(p.Burst)), max(next.rate, float64(p.Num)/float64(p.Den))
	}
	e.limits = append(e.limits, next)
}

// Slack lets n more tokens be used besides in any interval in which the last limit is in force.
func (e *Eras) Slack(n int64) { e.limits[len(e.limits)-1].slack += float64(n) }

// Use notes that n tokens are used, and returns by how many too many that is.
func (e *Eras) Use(now quota.Instant, n int64) (over float64) {
	e.uses = append(e.uses, use{now, float64(n)})
	at := len(e.limits) - 1
	most := e.limits[at]
	sum, slack := 0.0, most.slack
	for i := len(e.uses) - 1; i >= 0; i-- {
		for at > 0 && e.limits[at].since >= e.uses[i].at {
			at--
			most.burst, most.rate = max(most.burst, e.limits[at].burst), max(most.rate, e.limits[at].rate)
			slack += e.limits[at].slack
		}
		sum += e.uses[i].n
		over = max(over, sum-most.burst-slack-most.rate*float64(now-e.uses[i].at)-rounding)
	}
	return over
}

// Modest is the other side: a caller who keeps within the smallest burst and the smallest rate of
// all limits that were in force is never refused.
type Modest struct{ burst, rate, owed, last float64 }

// Change takes in another limit, of which the caller uses a part.
func (m *Modest) Change(p quota.Params, part float64) {
	burst, rate := float64(p.Burst)*part, float64(p.Num)/float64(p.Den)*part
	if m.burst == 0 {
		m.burst, m.rate = burst, rate
	}
	m.burst, m.rate = min(m.burst, burst), min(m.rate, rate)
}

// Room is how many tokens the caller may use now.
func (m *Modest) Room(now quota.Instant) int64 {
	m.owed, m.last = max(0, m.owed-(float64(now)-m.last)*m.rate), float64(now)
	return int64(m.burst - m.owed)
}

// Use notes that it used n.
func (m *Modest) Use(n int64) { m.owed += float64(n) }
