package limiter_test

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/quota"
)

const ms = quota.Instant(quota.Millisecond)

// step is one request of a timeline.
type step struct {
	at           quota.Instant
	status       limiter.Status
	remaining    int64
	retry, reset quota.Span
}

func (n *node) timeline(start quota.Instant, steps ...step) {
	n.t.Helper()
	for i, s := range steps {
		n.now = start + s.at
		req, status := n.begin()
		hit := req.Hits[0]
		if status != s.status || hit.Remaining != s.remaining || hit.Reset != s.reset ||
			status == limiter.Refused && hit.Retry != s.retry {
			n.t.Errorf("step %d: status %v, remaining %d, reset %d, retry %d; want %+v", i, status, hit.Remaining,
				hit.Reset, hit.Retry, s)
		}
	}
}

// The reset is when the last entry leaves, also where a request is refused.
func TestTheResetOfASlidingLog(t *testing.T) {
	n := newNode(t, true, `{"name":"p","partition":[],"algorithm":"sliding_log","limit":{"quota":2,"window":"10s"},"mode":"local"}`)
	n.timeline(n.now,
		step{at: 0, status: limiter.Allowed, remaining: 1, reset: 10 * quota.Second},
		step{at: 4 * sec, status: limiter.Allowed, remaining: 0, reset: 10 * quota.Second},
		step{at: 5 * sec, status: limiter.Refused, retry: 5 * quota.Second, reset: 9 * quota.Second},
		step{at: 10 * sec, status: limiter.Allowed, remaining: 0, reset: 10 * quota.Second},
		step{at: 13 * sec, status: limiter.Refused, retry: quota.Second, reset: 7 * quota.Second},
	)
}

// Windows of the calendar begin by wall time, whatever the clock of the requests shows.
func TestCalendarWindows(t *testing.T) {
	n := newNode(t, true, `{"name":"p","partition":[],"algorithm":"fixed_window","align":"utc","limit":{"quota":1,"window":"1m"},"mode":"local"}`)
	const minute = 60 * sec
	start := n.now
	n.limiter.Ahead = quota.Span(1_700_000_000/60*minute+30*sec) - quota.Span(start) // half past a minute
	n.timeline(start,
		step{at: 0, status: limiter.Allowed, reset: 30 * quota.Second},
		step{at: 29 * sec, status: limiter.Refused, retry: quota.Second, reset: quota.Second},
		step{at: 30 * sec, status: limiter.Allowed, reset: quota.Minute},
	)
	// The wall clock is set back: time stands still in the bucket, and nothing is minted.
	n.limiter.Ahead -= 20 * quota.Second
	n.timeline(start, step{at: 40 * sec, status: limiter.Refused, retry: 70 * quota.Second, reset: 70 * quota.Second})
	// It is set forward by a minute.
	n.limiter.Ahead += 80 * quota.Second
	n.timeline(start, step{at: 41 * sec, status: limiter.Allowed, reset: 49 * quota.Second})
}

// However often the wall clock jumps, it mints the quota once for each jump, and refuses no longer
// than until the window ends that the clock has last believed in.
func TestTheWallClockJumpsManyTimes(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		n := newNode(t, true, `{"name":"p","partition":[],"algorithm":"fixed_window","align":"utc",
			"limit":{"quota":5,"window":"1m"},"mode":"local"}`)
		const minute = 60 * sec
		n.limiter.Ahead = quota.Span(1_700_000_000/60*minute) - quota.Span(n.now)
		wall := func() quota.Instant { return n.now + quota.Instant(n.limiter.Ahead) }
		start, latest := n.now, wall()
		passed, jumps := 0, 0
		for range 40 {
			if r.IntN(4) == 0 {
				n.limiter.Ahead += quota.Span(r.Int64N(10*int64(minute)) - 5*int64(minute))
				jumps++
			}
			n.now += quota.Instant(r.Int64N(int64(minute)))
			latest = max(latest, wall())
			passed += n.count()
		}
		windows := int((n.now-start)/minute) + 2
		if most := 5 * (windows + jumps); passed > most {
			t.Errorf("seed %d: %d passed in %d windows with %d jumps, at most %d may",
				seed, passed, windows, jumps, most)
		}
		if last := latest - latest%minute + minute; wall() < last {
			n.now += last - wall()
		} else {
			n.now += minute
		}
		if passed := n.count(); passed != 5 {
			t.Errorf("seed %d: %d pass once the last window has ended, want 5", seed, passed)
		}
	}
}

// A changed limit keeps the used tokens; a worker with an older policy set does not convert it
// back.
func TestPushKeepsWindows(t *testing.T) {
	const p = `{"name":"p","partition":[],"algorithm":"sliding_window","mode":"local","limit":{"window":"10s","quota":`
	n := newNode(t, true, p+`4}}`)
	if passed := n.count(); passed != 4 {
		t.Fatalf("%d passed", passed)
	}
	older := n.rules
	n.push(2, p+`6}}`)
	newer := n.rules
	if passed := n.count(); passed != 2 {
		t.Errorf("%d more passed of 6", passed)
	}
	n.rules = older
	if _, status := n.begin(); status != limiter.Refused {
		t.Error("the older set converted the bucket back")
	}
	n.now += 11 * sec
	if passed := n.count(); passed != 6 {
		t.Errorf("%d passed by the bucket's own figures, want 6", passed)
	}
	n.rules = newer
	if _, status := n.begin(); status != limiter.Refused {
		t.Error("the bucket was filled")
	}
}

// A wall clock that was a day ahead and is right again locks no caller out for longer than a
// window.
func TestAWallClockThatIsSetBack(t *testing.T) {
	n := newNode(t, false, `{"name":"p","partition":[],"algorithm":"fixed_window","align":"utc","limit":{"quota":2,"window":"1h"}}`)
	const day = quota.Day
	for _, step := range []struct {
		ahead   quota.Span
		after   quota.Instant
		allowed int
	}{
		{day, 0, 2}, {2 * day, 60 * sec, 2}, {day, 60 * sec, 0}, {day - quota.Second, 60 * sec, 0},
		{day, 3600 * sec, 2},
	} {
		n.limiter.Ahead, n.now = step.ahead, n.now+step.after
		allowed := 0
		for range 3 {
			req, status := n.begin()
			if status == limiter.Allowed {
				allowed++
			} else if req.Hits[0].Retry > quota.Hour {
				t.Errorf("ahead by %d: must wait %d", step.ahead, req.Hits[0].Retry)
			}
		}
		if allowed != step.allowed {
			t.Errorf("ahead by %d: %d are allowed, want %d", step.ahead, allowed, step.allowed)
		}
	}
}
