package simulation

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

// A bucket that the store has lost starts with half of its first caller's burst. A caller whose own
// figures are half as large or less finds nothing then. It hears that the count was lost, waits a
// window at most, and passes when it has waited as the refusal says; and no more passes than a
// burst of the largest figures.
func TestSmallFiguresAfterALossWaitAsTheyAreAsked(t *testing.T) {
	refused := 0
	for _, mode := range []string{"strict", "leased", "optimistic"} {
		for _, algorithm := range []string{"token_bucket", "fixed_window", "sliding_window", "sliding_log"} {
			if mode == "optimistic" && algorithm != "token_bucket" {
				continue
			}
			for seed := range uint64(20) {
				w := &lone{
					t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 0x105e)), now: 1e12,
					done: map[uint32]decided{}, asked: map[uint32]quota.Instant{},
					exact: map[exactKey]*exact{}, seen: map[string]int{},
				}
				large, window := 4+w.r.Int64N(60), pick[int64](w.r, 5, 20, 60, 600)
				small := 1 + w.r.Int64N(large/2)
				w.document = fmt.Sprintf(`{"version":"weir/v1","policies":[{"name":"p","partition":["header:x-key"],`+
					`"mode":%q,"algorithm":%q,"limit":{"window":"%ds",`+
					`"quota":{"header":"x-rate","trusted":true,"max":%d,"default":1}}}]}`,
					mode, algorithm, window, large)
				w.start(1, 1)
				w.store.Lose()
				ask := func(figure int64) decided {
					w.figure = figure
					return w.decision(w.send(question{path: "/p0", cost: 1}))
				}
				if first := ask(large); !first.Allowed {
					t.Fatalf("%s %s, seed %d: the first is refused: %s", mode, algorithm, seed, first.Answer)
				}
				says := fmt.Sprintf("%s %s, seed %d, %d of %d", mode, algorithm, seed, small, large)
				refused += waitAsAsked(t, says, large, window, func() decided {
					d := ask(small)
					if !d.Allowed {
						wait, _ := strconv.ParseInt(d.Answer.Headers["retry-after"], 10, 64)
						w.advance(max(w.now, d.at+quota.Instant(wait*1e6)))
					}
					return d
				}, mode == "optimistic")
			}
		}
	}
	if t.Logf("%d refused", refused); refused < 100 {
		t.Error("too little was tried")
	}
}

// waitAsAsked makes a caller with small figures ask until it has passed after a refusal, and
// returns how many refusals it met. An optimistic Envoy that has heard nothing of the loss first
// refuses by its earlier state.
func waitAsAsked(t *testing.T, says string, most, window int64, ask func() decided, optimistic bool) (refused int) {
	for passed := int64(1); ; passed++ {
		d := ask()
		if d.Allowed && refused > 0 {
			return refused
		}
		if d.Allowed {
			if passed > most {
				t.Fatal(says, passed, "pass")
			}
			continue
		}
		wait, err := strconv.ParseInt(d.Answer.Headers["retry-after"], 10, 64)
		first := refused == 0 && optimistic
		if refused++; refused > 1 && !optimistic || refused > 2 || d.Reason != "failure" && !first || err != nil ||
			wait > window*22/10+2 {
			t.Fatal(says, refused, d.Answer)
		}
	}
}
