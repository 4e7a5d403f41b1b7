package rpc

import "github.com/weir-proxy/weir/shared/quota"

// ReportPath is where reports go.
const ReportPath = "/node/v1/report"

// Times of reports: how long an answer may take, and how long the next report waits after an answer
// that does not know it.
const (
	reportTimeout = quota.Second
	unknown       = quota.Minute
)

// Reporter sends reports to the control plane, one at a time. One that does not arrive is lost. Set
// all exported fields but the counters before use.
type Reporter struct {
	Client Client
	Clock  Clock
	Random Rand
	// Apart is how long the next report waits after one that arrived. Pauses follow those that did
	// not.
	Apart  quota.Span
	Pauses Backoff
	// These count the reports that arrived, and the others.
	Told, Failed uint64

	underWay bool
	due      quota.Instant
	pause    quota.Span
}

// Due reports whether a report may leave.
func (r *Reporter) Due(now quota.Instant) bool { return !r.underWay && now >= r.due }

// NextReport is when the next report may leave; quota.Forever while one is under way.
func (r *Reporter) NextReport() quota.Instant {
	if r.underWay {
		return quota.Forever
	}
	return r.due
}

// Send sends a report that is Due.
func (r *Reporter) Send(report []byte, now quota.Instant) {
	r.underWay = true
	done := func(status int, _ []byte) { r.answered(r.Clock.Now(), status) }
	if err := r.Client.Call(ReportPath, report, reportTimeout, done); err != nil {
		r.answered(now, 0)
	}
}

func (r *Reporter) answered(now quota.Instant, status int) {
	r.underWay = false
	switch {
	case Of(status) == Answered:
		r.Told++
		r.pause, r.due = 0, now+quota.Instant(r.Apart)
		return
	case status == 404, status == 405:
		r.due = now + quota.Instant(unknown)
	default:
		r.pause = r.Pauses.After(r.pause)
		r.due = now + Spread(2*r.pause, r.Random.Jitter())
	}
	r.Failed++
}
