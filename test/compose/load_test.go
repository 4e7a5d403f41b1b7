package compose

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A sample is an answer with the times of its request.
type sample struct {
	answer
	sent, got time.Time
}

// A load sends requests to /steady, 80 a second, and to /asked, 20 a second, until its end.
type load struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu            sync.Mutex
	steady, asked []sample
}

// startLoad starts a load that ends with the test at the latest.
func startLoad(t *testing.T) *load {
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{cancel: cancel}
	for range 4 {
		l.done.Go(func() { l.send(ctx, t, "/steady", &l.steady) })
	}
	l.done.Go(func() { l.send(ctx, t, "/asked", &l.asked) })
	t.Cleanup(l.end)
	return l
}

func (l *load) send(ctx context.Context, t *testing.T, path string, samples *[]sample) {
	for tick := time.NewTicker(time.Second / 20); ctx.Err() == nil; <-tick.C {
		sent := time.Now()
		a := ask(t, path)
		l.mu.Lock()
		*samples = append(*samples, sample{a, sent, time.Now()})
		l.mu.Unlock()
	}
}

// end ends the load, if it has not ended, and waits for its last answers.
func (l *load) end() {
	l.cancel()
	l.done.Wait()
}

// kill ends the main process of a service under load. Docker must start it again, limits must be
// exact again in time, and meanwhile nothing passes beyond the bound in docs/internals/failures.md.
func (s *services) kill(t *testing.T, service string) {
	l := startLoad(t)
	time.Sleep(2 * time.Second)
	before := s.look(t, service)
	killed := time.Now()
	if err := syscall.Kill(before.State.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, service+" to be back", func(context.Context) error {
		if now := s.look(t, service); now.RestartCount != before.RestartCount+1 || !now.works() {
			return fmt.Errorf("it is %+v", now)
		}
		return nil
	})
	up := time.Since(killed)
	time.Sleep(max(0, returnTime-up) + 4*time.Second)
	l.end()
	t.Logf("%s was up after %v, and requests were decided as before after %v", service, up.Round(10*time.Millisecond),
		l.endOfOutage(killed).Sub(killed).Round(10*time.Millisecond))
	more := 0.0
	switch service {
	case "redis":
		// Redis writes to its file after an answer, so a part of its state may be lost.
		more = burst / 2
		s.redisRestarted = true
		l.mustHaveNoErrors(t)
	case "controlplane":
		l.mustHaveNoErrors(t)
	case "envoy":
		l.mustBeUndecidedBriefly(t)
	}
	l.mustHoldBound(t, more)
	l.mustBeBack(t, killed.Add(returnTime))
	s.mustBeSpent(t)
}

// endOfOutage returns when the last of four or more requests in a row was sent that a strict policy
// did not let through, or begin. Fewer are late answers of a busy machine.
func (l *load) endOfOutage(begin time.Time) time.Time {
	last, failures := begin, 0
	for _, s := range l.asked {
		failures++
		if s.status == http.StatusOK {
			failures = 0
		}
		if failures >= 4 && s.sent.After(last) {
			last = s.sent
		}
	}
	return last
}

// mustHoldBound checks that in no interval more requests passed than the burst, the rate for the
// interval, and a number beyond them. A request whose upstream is away has passed too.
func (l *load) mustHoldBound(t *testing.T, more float64) {
	t.Helper()
	var passed []sample
	for _, s := range l.steady {
		if s.status == http.StatusOK && s.decided || s.status >= 500 {
			passed = append(passed, s)
		}
	}
	slices.SortFunc(passed, func(a, b sample) int { return a.got.Compare(b.got) })
	worst, length := math.Inf(-1), time.Duration(0)
	for _, first := range passed {
		count := 0
		for _, last := range passed {
			if last.sent.Before(first.sent) {
				continue
			}
			count++
			took := last.got.Sub(first.sent)
			if beyond := float64(count) - burst - rate*took.Seconds(); beyond > worst {
				worst, length = beyond, took
			}
		}
	}
	t.Logf("%d of %d requests passed, in the fullest interval (%v) %.1f beyond the bound", len(passed), len(l.steady),
		length.Round(time.Millisecond), worst)
	if worst > more {
		t.Errorf("in %v %.1f more requests passed than the burst and the rate, at most %.0f may", length, worst, more)
	}
}

// mustHaveNoErrors checks that each request was answered, and none with 5xx.
func (l *load) mustHaveNoErrors(t *testing.T) {
	t.Helper()
	for _, s := range slices.Concat(l.steady, l.asked) {
		if s.status != http.StatusTooManyRequests && (s.status != http.StatusOK || !s.decided) {
			t.Errorf("an answer at %v is %+v", s.got, s.answer)
		}
	}
}

// mustBeUndecidedBriefly checks that an Envoy which has no policies yet has them within a second.
func (l *load) mustBeUndecidedBriefly(t *testing.T) {
	t.Helper()
	var first, last time.Time
	undecided := 0
	for _, s := range slices.Concat(l.steady, l.asked) {
		if s.status == http.StatusOK && !s.decided {
			undecided++
			if first.IsZero() || s.sent.Before(first) {
				first = s.sent
			}
			if s.sent.After(last) {
				last = s.sent
			}
		}
	}
	t.Logf("%d requests met an Envoy without policies, in %v", undecided, last.Sub(first))
	if last.Sub(first) > time.Second {
		t.Errorf("an Envoy had no policies for %v", last.Sub(first))
	}
}

// mustBeBack checks that from a moment on all limits are exact: a strict policy lets requests
// through, and a limit that is used up gives half of its rate and more.
func (l *load) mustBeBack(t *testing.T, from time.Time) {
	t.Helper()
	if last := l.endOfOutage(from); last.After(from) {
		t.Errorf("a strict policy still refused %v after the time at which limits must be exact", last.Sub(from))
	}
	passed, end := 0, from
	for _, s := range l.steady {
		if s.sent.After(from) {
			end = s.got
			if s.status == http.StatusOK {
				passed++
			}
		}
	}
	if least := rate * end.Sub(from).Seconds() / 2; end.Sub(from) < 3*time.Second || float64(passed) < least {
		t.Errorf("%d requests passed in %v, want at least %.0f", passed, end.Sub(from), least)
	}
}
