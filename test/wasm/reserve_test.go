package wasm

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
)

// stay is a request that its upstream answers at an instant of a test.
type stay struct {
	stream *envoytest.Stream
	until  time.Duration
}

// isIn reports whether it is at the upstream at now, which ends it there when its time is over.
func (s stay) isIn(now time.Duration) bool {
	if s.stream.State() == envoytest.Continued && now >= s.until {
		s.stream.Respond(200, nil)
		return false
	}
	return s.stream.State() == envoytest.Continued
}

// shop is two Envoys through which callers of the first class come, each through the other one soon
// after it has left, in a flood of bulk requests.
type shop struct {
	*rush
	random   *rand.Rand
	now      time.Duration
	callers  []stay
	bulk     []stay
	sent     int
	rejected int
}

const staysFor = 300 * time.Millisecond

// come lets an absent caller come after a while.
func (s *shop) come(caller *stay) (isIn bool) {
	if caller.stream != nil && caller.stream.State() == envoytest.Replied {
		s.rejected++
		caller.stream = nil
	}
	switch {
	case caller.stream == nil:
		if s.random.IntN(20) == 0 {
			request := s.nodes[s.sent%2].Worker(s.random.IntN(2)).Request(get("x-critical", "1"))
			*caller = stay{request, s.now + staysFor}
			s.sent++
		}
	case caller.isIn(s.now):
		return true
	case caller.stream.State() != envoytest.Paused:
		caller.stream = nil
	}
	return false
}

// millisecond passes. It returns how many callers and bulk requests are at the upstream.
func (s *shop) millisecond() (callers, bulk int) {
	for i := range s.callers {
		if s.come(&s.callers[i]) {
			callers++
		}
	}
	request := s.nodes[s.random.IntN(2)].Worker(s.random.IntN(2)).Request(get())
	still := s.bulk[:0]
	for _, one := range append(s.bulk, stay{request, s.now + staysFor}) {
		isIn := one.isIn(s.now)
		if isIn {
			bulk++
		}
		if isIn || one.stream.State() == envoytest.Paused {
			still = append(still, one)
		}
	}
	s.bulk = still
	s.now += time.Millisecond
	s.pass(time.Millisecond)
	return callers, bulk
}

// The first class finds a place each time, with all that are kept for it in use, while the others
// ask for twenty times theirs: these take none of its places, also not while they wait for one of
// their own.
func TestTheFirstClassFindsItsPlaces(t *testing.T) {
	for _, c := range []struct {
		mode, wait string
		limit      int
	}{{"leased", "0s", 20}, {"leased", "50ms", 20}, {"local", "50ms", 10}} {
		t.Run(c.mode+" "+c.wait, func(t *testing.T) {
			set := fmt.Sprintf(`{"version": "weir/v1", "priorities": [{"name": "critical", "match": {
				"headers": [{"name": "x-critical", "present": true, "trusted": true}]}}, {"name": "bulk"}],
				"policies": [{"name": "places", "partition": [], "limit": {"in_flight": %d},
				"reserve": {"critical": "20%%"}, "mode": %q, "max_wait": %q, "on_failure": ["deny"]}]}`,
				c.limit, c.mode, c.wait)
			s := &shop{
				rush:   newRush(t, fleet{nodes: 2, workers: 2, set: set}),
				random: rand.New(rand.NewPCG(7, 8)), callers: make([]stay, 4),
			}
			sum, steps := 0, 0
			for s.now < 20*time.Second {
				callers, bulk := s.millisecond()
				if bulk > 16 || callers+bulk > 20 {
					t.Fatalf("%d bulk requests in flight, %d in all", bulk, callers+bulk)
				}
				if s.now > 5*time.Second {
					sum, steps = sum+bulk, steps+1
				}
			}
			had := float64(sum) / float64(steps)
			t.Logf("%d of %d refused; %.2f bulk requests in flight", s.rejected, s.sent, had)
			if s.rejected > 0 || s.sent < 200 {
				t.Errorf("%d of %d requests of the first class were refused", s.rejected, s.sent)
			}
			if had < 0.95*16 {
				t.Errorf("%.2f bulk requests were in flight, 16 are theirs", had)
			}
		})
	}
}
