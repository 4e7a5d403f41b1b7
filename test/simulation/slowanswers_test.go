package simulation

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

// slowGames is how many games of slow answers each mode plays.
const slowGames = 300

// newSlow returns a control plane whose answers take about the time for which requests wait:
// messages overtake each other, and some take longer than any request waits.
func newSlow(t *testing.T, seed uint64, mode, algorithm string, nodes int, limit int64) *stall {
	s := newStall(t, mode, algorithm, nodes, limit)
	s.r = rand.New(rand.NewPCG(seed, 9))
	most := 1000 + s.r.IntN(40_000)
	s.way = func() quota.Instant {
		if s.r.IntN(4) == 0 {
			return quota.Instant(s.r.IntN(2 * most))
		}
		return quota.Instant(s.r.IntN(most))
	}
	return s
}

// Each request is charged once, whichever of its calls brings its tokens, or the share: however
// late answers come, and however reports, questions and debts overtake each other.
func TestSlowAnswersChargeEachRequestOnce(t *testing.T) {
	for _, nodes := range []int{1, 4} {
		for _, mode := range []string{"strict", "leased", "optimistic"} {
			t.Run(fmt.Sprintf("%d/%s", nodes, mode), func(t *testing.T) {
				for seed := range uint64(slowGames) {
					s := newSlow(t, seed, mode, "token_bucket", nodes, 1000)
					pause, offered := s.r.IntN(2)*8000, int64(0)
					for range 1 + s.r.IntN(6) {
						for range 1 + s.r.IntN(12) {
							cost := []int64{1, 1, 5, 30}[s.r.IntN(4)]
							s.send(s.r.IntN(nodes), s.r.IntN(2), string(rune('a'+s.r.IntN(2))), cost)
							offered += cost
							s.pass(quota.Span(s.r.IntN(pause + 1)))
						}
						s.pass(quota.Span(s.r.IntN(120_000)))
					}
					s.pass(8 * quota.Second)
					if charged, owed := s.charged(); charged+owed != offered || s.usedUp > 0 {
						t.Errorf("seed %d: %d charged and %d owed of %d offered, %d used up", seed, charged, owed,
							offered, s.usedUp)
					}
				}
			})
		}
	}
}

// A caller within its limit is never refused because its limit is used up, and is charged no more
// than it sent: in bursts at nodes that know nothing yet, where shares decide some of the requests
// because answers are late.
func TestSlowAnswersLeaveACallerItsLimit(t *testing.T) {
	for _, c := range [][2]string{
		{"strict", "token_bucket"}, {"strict", "fixed_window"}, {"leased", "token_bucket"},
		{"leased", "sliding_window"}, {"leased", "fixed_window"}, {"optimistic", "token_bucket"},
	} {
		t.Run(c[0]+"/"+c[1], func(t *testing.T) {
			passed, refused := int64(0), int64(0)
			for seed := range uint64(slowGames) {
				s := newSlow(t, seed, c[0], c[1], 4, 10)
				s.sendBursts(4)
				passed, refused = passed+s.allowed, refused+s.refused
				charged, owed := s.charged()
				all := charged + owed
				if c[1] != "token_bucket" { // The test's store cannot report the tokens of windows.
					all = s.allowed
				}
				if s.usedUp > 0 || all < s.allowed || all > s.limit*4 {
					t.Errorf("seed %d: %d charged and %d owed, %d passed, %d refused, %d of them as used up", seed,
						charged, owed, s.allowed, s.refused, s.usedUp)
				}
			}
			if t.Logf("%d passed, shares refused %d", passed, refused); refused == 0 {
				t.Error("the runs are too tame")
			}
		})
	}
}

// sendBursts makes each of some callers send its limit's number of requests, in two bursts.
func (s *stall) sendBursts(callers int) {
	homes := 1 + s.r.IntN(2) // Some callers meet several nodes.
	for range 2 {
		for range s.limit / 2 {
			for caller := range callers {
				s.send((caller+s.r.IntN(homes))%len(s.nodes), s.r.IntN(2), string(rune('a'+caller)), 1)
			}
			s.pass(quota.Span(s.r.IntN(2000)))
		}
		s.pass(quota.Span(s.r.IntN(100_000)))
	}
	s.pass(8 * quota.Second)
}
