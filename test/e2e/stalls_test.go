package e2e

import (
	"sync"
	"testing"
	"time"
)

// stalls knows when this machine let processes wait. A busy or paused machine must break no test,
// so promises about time are checked against the time without stalls.
var stalls stallMeter

// stallMeter is a goroutine that sleeps again and again, and notes how much too late it wakes up.
type stallMeter struct {
	mu   sync.Mutex
	seen []stall
}

// stall is how much too late the meter woke up at a time.
type stall struct {
	woke time.Time
	late time.Duration
}

// meterNap is how long the meter sleeps, and meterSlack is how late each wake-up may be: the timers
// of an idle machine are as late as this.
const (
	meterNap   = 5 * time.Millisecond
	meterSlack = time.Millisecond
)

// run measures until the process ends.
func (m *stallMeter) run() {
	for {
		begin := time.Now()
		time.Sleep(meterNap)
		woke := time.Now()
		if late := woke.Sub(begin) - meterNap; late > meterSlack {
			m.mu.Lock()
			m.seen = append(m.seen, stall{woke, late})
			m.mu.Unlock()
		}
	}
}

// between returns the sum of the stalls that ended between two times.
func (m *stallMeter) between(from, to time.Time) (sum time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.seen {
		if s.woke.After(from) && !s.woke.After(to) {
			sum += min(s.late, s.woke.Sub(from))
		}
	}
	return sum
}

// mustTake wants something to have taken no longer than it may, without the stalls meanwhile.
func mustTake(t *testing.T, what string, begin, end time.Time, atMost time.Duration) {
	t.Helper()
	took, stalled := end.Sub(begin), stalls.between(begin, end)
	t.Logf("%s took %v; the machine stalled for %v meanwhile", what, took.Round(time.Millisecond),
		stalled.Round(time.Millisecond))
	if took-stalled > atMost {
		t.Errorf("%s took %v without %v of stalls, want at most %v", what, took-stalled, stalled, atMost)
	}
}

func TestStallsAreThoseBetweenTwoTimes(t *testing.T) {
	var m stallMeter
	at := func(ms int) time.Time { return time.Time{}.Add(time.Duration(ms) * time.Millisecond) }
	m.seen = []stall{{at(100), 30 * time.Millisecond}, {at(200), 50 * time.Millisecond}}
	for _, c := range []struct{ from, to, want int }{
		{0, 99, 0}, {0, 100, 30}, {0, 300, 80}, {90, 150, 10}, {100, 200, 50}, {180, 250, 20}, {200, 300, 0},
	} {
		if got := m.between(at(c.from), at(c.to)); got != time.Duration(c.want)*time.Millisecond {
			t.Errorf("%d to %d ms: %v, want %d ms", c.from, c.to, got, c.want)
		}
	}
}
