package wire

import "github.com/weir-proxy/weir/shared/quota"

// Bounds of the section about measures.
const (
	// MaxMeasures is how many policies one report has.
	MaxMeasures = 256
	// MaxCovers is the longest time that a report covers.
	MaxCovers = 30 * quota.Second
	// MaxUsed is the highest part of a limit, in percent.
	MaxUsed = 1000

	// AllRequests is the Policy of the measure of all requests, whether policies match them or not.
	AllRequests = "*"

	maxBusy = 1 << 45
	// numbers is how many there are of one policy; zeros at the end are left out.
	numbers = 12
)

// Measures is the section about what the worker has measured of policies since its last report.
type Measures struct {
	// Node is that of the report. Read from a message, it aliases it.
	Node []byte
	// Covers is how long before the report the measured time began: Busy is about that time.
	Covers quota.Span
	Items  []Measure
}

// Measure is what was measured of one policy.
type Measure struct {
	// Policy is its name. Read from a message, it aliases it.
	Policy []byte
	// CandidateRefused are requests that its candidate limit would have refused, ShadowRefused
	// those that it would have refused if it were enforced.
	CandidateRefused, ShadowRefused int64
	// Busy is for how long requests were in flight, added up, in milliseconds: three requests that
	// last a second each are 3000.
	Busy int64
	// Used is how much of the limit of one of its buckets was in flight at most, in percent.
	Used int64
	// CandidateUndetermined and ShadowUndetermined are requests of which these do not know what
	// they would have done.
	CandidateUndetermined, ShadowUndetermined int64
	// Decided are the requests that it let through or refused, enforced, and Refused the latter.
	// Unsure are those that it decided without its bucket. Waited are those that waited for its
	// tokens, and Held for how many milliseconds they did, added up.
	Decided, Refused, Unsure, Waited, Held int64
	// Version is the policy set that decided; 0 if nothing was decided.
	Version uint64
}

// numbers are those of a measure, in the order in which they are written.
func (m *Measure) numbers(version *int64) [numbers]*int64 {
	return [...]*int64{
		&m.CandidateRefused, &m.ShadowRefused, &m.Busy, &m.Used, &m.CandidateUndetermined, &m.ShadowUndetermined,
		&m.Decided, &m.Refused, &m.Unsure, &m.Waited, &m.Held, version,
	}
}

func appendMeasures(dst []byte, m *Measures) []byte {
	dst = putUvarint(putUvarint(dst, int64(m.Covers/quota.Millisecond)), int64(len(m.Items)))
	for i := range m.Items {
		one := &m.Items[i]
		dst = putRaw(putUvarint(dst, int64(len(one.Policy))), one.Policy)
		version := int64(one.Version)
		numbers := one.numbers(&version)
		most := len(numbers)
		for most > 0 && *numbers[most-1] == 0 {
			most--
		}
		dst = putUvarint(dst, int64(most))
		for _, n := range numbers[:most] {
			dst = putUvarint(dst, *n)
		}
	}
	return dst
}

func (c *cursor) measures() *Measures {
	m := &Measures{}
	m.Covers = quota.Span(c.within(0, int64(MaxCovers/quota.Millisecond))) * quota.Millisecond
	for n := c.within(0, MaxMeasures); n > 0 && c.err == nil; n-- {
		one := Measure{Policy: c.text(maxName)}
		version := int64(0)
		known := one.numbers(&version)
		most := [numbers]int64{maxCount, maxCount, maxBusy, MaxUsed, maxCount, maxCount,
			maxCount, maxCount, maxCount, maxCount, maxBusy, maxVersion}
		for i := range c.within(0, numbers) {
			*known[i] = c.within(0, most[i])
		}
		one.Version = uint64(version)
		if len(one.Policy) == 0 || one.Refused > one.Decided {
			c.fail(ErrValue)
		}
		m.Items = append(m.Items, one)
	}
	return m
}
