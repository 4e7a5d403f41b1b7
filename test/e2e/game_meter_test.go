package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// passed is a request that a limit let through: it was decided between the two times.
type passed struct{ sent, at time.Time }

// meter notes the requests that a limit of a burst and a rate lets through, and checks the bound of
// every interval. It is safe for concurrent use.
type meter struct {
	name        string
	burst, rate float64

	mu       sync.Mutex
	passed   []passed
	refused  int64
	admitted int64
	// closest is the greatest part of a bound that was reached.
	closest float64
	// scantest is the smallest share of the required requests that passed; 0 if no request had to
	// pass.
	scantest float64
}

// scant notes how many of the required requests passed.
func (m *meter) scant(passed, least float64) {
	if part := passed / least; least > 0 && (m.scantest == 0 || part < m.scantest) {
		m.scantest = part
	}
}

// lately returns the number of requests that passed in the time before now.
func (m *meter) lately(during time.Duration) (n float64) {
	since := time.Now().Add(-during)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.passed {
		if p.at.After(since) {
			n++
		}
	}
	return n
}

func (m *meter) note(a answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.status != 200 {
		m.refused++
		return
	}
	m.admitted++
	m.passed = append(m.passed, passed{a.at.Add(-a.took), a.at})
}

// hold checks all intervals since a time. The requests that were sent and answered in an interval
// are at most the tokens that the limit gives in it, and extra tokens. It forgets everything before
// that time.
func (m *meter) hold(since time.Time, extra float64) error {
	m.mu.Lock()
	m.passed = slices.DeleteFunc(m.passed, func(p passed) bool { return p.sent.Before(since) })
	all := slices.Clone(m.passed)
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b passed) int { return a.at.Compare(b.at) })
	for _, first := range all {
		n := 0.0
		for _, p := range all {
			if p.sent.Before(first.sent) {
				continue
			}
			n++
			most := m.burst + m.rate*p.at.Sub(first.sent).Seconds() + extra
			m.closest = max(m.closest, n/most)
			if n > most {
				return fmt.Errorf("%s let %.0f through within %v, at most %.0f = %.0f + %.0f/s and %.0f may be", m.name,
					n, p.at.Sub(first.sent), most, m.burst, m.rate, extra)
			}
		}
	}
	return nil
}

// counted returns the numbers of requests that passed and were refused so far.
func (m *meter) counted() (admitted, refused int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.admitted, m.refused
}

// An interval counts the requests that were sent and answered in it. A meter finds the interval
// that has too many, and finds none if answers came late.
func TestAMeterFindsTheIntervalThatHasTooMany(t *testing.T) {
	begin := time.Now()
	for _, c := range []struct {
		late  time.Duration // of each answer
		every time.Duration
		n     int
		extra float64
		holds bool
	}{
		{0, 100 * time.Millisecond, 100, 0, true},
		{0, 90 * time.Millisecond, 90, 0, true}, // The burst covers it.
		{0, 90 * time.Millisecond, 200, 0, false},
		{0, 90 * time.Millisecond, 200, 20, true},
		{time.Second, 100 * time.Millisecond, 100, 0, true},
		{0, 0, 10, 0, true}, {0, 0, 11, 0, false}, {0, 0, 12, 2, true},
	} {
		m := &meter{burst: 10, rate: 10}
		for i := range c.n {
			m.note(answer{status: 200, took: c.late, at: begin.Add(time.Duration(i)*c.every + c.late)})
		}
		if err := m.hold(begin, c.extra); (err == nil) != c.holds {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
