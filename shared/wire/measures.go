package wire

import "github.com/weir-proxy/weir/shared/quota"

// Bounds of the section about measures.
const (
	// MaxMeasures is the largest number of policies in one report.
	MaxMeasures = 256
	// MaxCovers is the longest time that a report covers.
	MaxCovers = 30 * quota.Second
	// MaxUsed is the highest part of a limit, in percent.
	MaxUsed = 1000

	// AllRequests is the Policy of the measure of all requests, whether policies match them or not.
	AllRequests = "*"

	maxBusy = 1 << 45
	// numbers is the number of figures of one policy; zeros at the end are left out.
	numbers = 12
)

// Measures is the section about the worker's measurements of policies since its last report.
type Measures struct {
	// Node is the report's node. Read from a message, it aliases the message.
	Node []byte
	// Covers is how long before the report the measured time began; Busy is about that time.
	Covers quota.Span
	Items  []Measure
}

// Measure is the measurement of one policy.
type Measure struct {
	// Policy is its name. Read from a message, it aliases the message.
	Policy []byte
	// CandidateRefused is the number of requests that its candidate limit would have refused,
	// ShadowRefused the number of requests that it would have refused if it were enforced.
	CandidateRefused, ShadowRefused int64
	// Busy is the sum of the times that requests were in flight, in milliseconds: three requests
	// that last a second each are 3000.
	Busy int64
	// Used is the largest part of the limit of one of its buckets that was in flight, in percent.
	Used int64
	// CandidateUndetermined and ShadowUndetermined are the numbers of requests for which the
	// candidate and the shadow could not decide.
	CandidateUndetermined, ShadowUndetermined int64
	// Decided is the number of requests that it let through or refused, enforced, and Refused the
	// number of refused requests. Unsure is the number of requests that it decided without its
	// bucket. Waited is the number of requests that waited for its tokens, and Held the sum of
	// their waits in milliseconds.
	Decided, Refused, Unsure, Waited, Held int64
	// Version is the policy set that decided; 0 if there was no decision.
	Version uint64
}

// figuresOf returns pointers to the figures of a measure, in the order in which they are written.
func (m *Measure) figuresOf(version *int64) [numbers]*int64 {
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
		numbers := one.figuresOf(&version)
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

func (c *cursor) readMeasures() *Measures {
	m := &Measures{}
	m.Covers = quota.Span(c.readWithin(0, int64(MaxCovers/quota.Millisecond))) * quota.Millisecond
	for n := c.readWithin(0, MaxMeasures); n > 0 && c.err == nil; n-- {
		one := Measure{Policy: c.readText(maxName)}
		version := int64(0)
		known := one.figuresOf(&version)
		most := [numbers]int64{maxCount, maxCount, maxBusy, MaxUsed, maxCount, maxCount,
			maxCount, maxCount, maxCount, maxCount, maxBusy, maxVersion}
		for i := range c.readWithin(0, numbers) {
			*known[i] = c.readWithin(0, most[i])
		}
		one.Version = uint64(version)
		if len(one.Policy) == 0 || one.Refused > one.Decided {
			c.failWith(ErrValue)
		}
		m.Items = append(m.Items, one)
	}
	return m
}
