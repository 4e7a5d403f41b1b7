package assign

import "github.com/weir-proxy/weir/shared/quota"

const (
	// shortest is the least time over which a demand is measured. Envoy reports every 5 s, and at
	// once when a bucket is new.
	shortest = 2 * quota.Second
	// Silence is the time without a report after which a filter counts as gone: three reports.
	Silence = 15 * quota.Second
	// mostCounted bounds the requests that a report can claim.
	mostCounted = 1 << 40
)

// Demand is the rate of requests that a filter has for one bucket, according to its reports. The
// zero value has no report.
type Demand struct {
	// Heard is the time of the last report, Used the time of the last report with a request.
	Heard, Used quota.Instant
	// rate is in requests a second; known once a report covers some time.
	rate  float64
	known bool
	// counted is the number of requests since the instant since; since is 0 before the first
	// report.
	counted int64
	since   quota.Instant
}

// Report notes that n requests, admitted or not, came since the last report. A higher rate counts
// at once, a lower one by half each time. The first report has the requests that made the bucket,
// which say nothing of a rate.
func (d Demand) Report(now quota.Instant, n int64) Demand {
	if d.since == 0 {
		return Demand{Heard: now, Used: now, since: max(now, 1)}
	}
	d.Heard = now
	if n > 0 {
		d.Used = now
		d.counted = min(d.counted+min(n, mostCounted), mostCounted)
	}
	span := quota.Span(now - d.since)
	if span < shortest {
		return d
	}
	rate := float64(d.counted) * float64(quota.Second) / float64(span)
	if d.known && rate < d.rate {
		rate = (rate + d.rate) / 2
	}
	d.rate, d.known, d.counted, d.since = rate, true, 0, now
	return d
}

// Rate returns the requests a second; known is false until a report covers some time.
func (d Demand) Rate() (rate float64, known bool) { return d.rate, d.known }

// gone reports whether the filter has been silent for too long to be assigned anything.
func (d Demand) gone(now quota.Instant) bool { return quota.Span(now-d.Heard) > Silence }
