package simulation

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// A caller that is alone passes after the wait that a refusal says, also where some answers of the
// control plane take their time, as on a busy machine: those to a request of a short limit come too
// late to be used soon, and their tokens go back. No request is late, and no token is lost: a
// refusal names the wait of an exact bucket.
func TestWaitsAreTrueWhereAnswersAreSlow(t *testing.T) {
	refused, slow := 0, 0
	for _, limit := range []string{
		`"algorithm":"token_bucket","limit":{"quota":1,"window":"1s"}`,
		`"algorithm":"token_bucket","limit":{"quota":3,"window":"3s"}`,
		`"algorithm":"sliding_log","limit":{"quota":3,"window":"3s"}`,
		`"algorithm":"sliding_log","limit":{"quota":5,"window":"20s"}`,
		`"algorithm":"sliding_window","limit":{"quota":3,"window":"3s"}`,
		`"algorithm":"fixed_window","limit":{"quota":3,"window":"3s"}`,
	} {
		for _, mode := range []string{"leased", "strict"} {
			for seed := range uint64(60) {
				w := slowLone(t, seed, limit, mode, &slow)
				q := question{path: "/p0", cost: 1}
				for range 40 {
					d := w.decision(w.send(q))
					if w.judge(q, d); w.wrong != "" {
						t.Fatalf("seed %d, %s %s: %s: %s", seed, mode, limit, w.wrong, w.why)
					}
					if d.Allowed {
						w.advance(w.now + quota.Instant(w.r.Int64N(3)*w.r.Int64N(10_000)))
						continue
					}
					refused++
					n, _ := strconv.Atoi(d.Answer.Headers["retry-after"])
					w.advance(max(w.now, d.at+quota.Instant(n)*quota.Instant(quota.Second)))
					again := w.decision(w.send(q))
					if w.judge(q, again); !again.Allowed {
						t.Fatalf("seed %d, %s %s: refused at %d:\n%s\nand at %d:\n%s",
							seed, mode, limit, d.at, d.Answer, again.at, again.Answer)
					}
				}
			}
		}
	}
	t.Logf("%d waits, %d messages took more than half of lease.Soon", refused, slow)
	if refused < 1000 || slow < 1000 {
		t.Error("the games are too tame")
	}
}

// slowLone returns a caller alone with a limit. Some of its messages take up to a fifth of the time
// for which a request waits, so a request that asks twice is not late.
func slowLone(t *testing.T, seed uint64, limit, mode string, slow *int) *lone {
	w := &lone{
		t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 0x510)), now: 1e12,
		done: map[uint32]decided{}, asked: map[uint32]quota.Instant{},
		exact: map[exactKey]*exact{}, seen: map[string]int{},
	}
	w.document = fmt.Sprintf(`{"version":"weir/v1","policies":[{"name":"p","mode":%q,"partition":["header:x-key"],%s}]}`,
		mode, limit)
	oneIn := 1 + w.r.IntN(12)
	w.way = func() quota.Instant {
		took := quota.Span(100 + w.r.IntN(900))
		if w.r.IntN(oneIn) == 0 {
			took = quota.Span(w.r.Int64N(int64(lease.Deadline) / 5))
		}
		if took > lease.Soon/2 {
			*slow++
		}
		return quota.Instant(took)
	}
	w.start(1, 1)
	return w
}
