package simulation

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

// A limit of which a token comes in a second says a second to the first request that it refuses,
// though the control plane counts the tokens before it as leased for a while, and the request
// passes then: whether the requests come one after the other or at once.
func TestASecondIsSaidToBeASecond(t *testing.T) {
	limits := map[string]string{
		`"algorithm":"token_bucket","limit":{"quota":1,"window":"1s"}`:  "",
		`"algorithm":"token_bucket","limit":{"quota":60,"window":"1m"}`: "",
		`"algorithm":"token_bucket","limit":{"quota":5,"window":"5s"}`:  "",
		`"algorithm":"sliding_log","limit":{"quota":3,"window":"1s"}`:   "",
		`"algorithm":"fixed_window","limit":{"quota":3,"window":"1s"}`:  "",
	}
	for limit := range limits {
		for _, mode := range []string{"leased", "strict"} {
			for seed := range uint64(40) {
				w := &lone{
					t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 0xf125)), now: 1e12,
					done: map[uint32]decided{}, asked: map[uint32]quota.Instant{},
					exact: map[exactKey]*exact{}, seen: map[string]int{},
				}
				w.document = fmt.Sprintf(`{"version":"weir/v1","policies":[{"name":"p","mode":%q,"partition":["header:x-key"],%s}]}`,
					mode, limit)
				w.start(1, 1)
				q := question{path: "/p0", cost: 1}
				var refused decided
				if seed%2 == 0 {
					for refused.Decision.Allowed = true; refused.Allowed; {
						refused = w.decision(w.send(q))
					}
				} else {
					streams := make([]uint32, 70)
					for i := range streams {
						streams[i] = w.send(q)
					}
					for _, s := range streams {
						if d := w.decision(s); !d.Allowed {
							refused = d
						}
					}
				}
				if said := refused.Answer.Headers["retry-after"]; said != "1" {
					t.Errorf("%s %s, seed %d: %q s: %s", mode, limit, seed, said, refused.Answer)
				}
				w.advance(max(w.now, refused.at+quota.Instant(quota.Second)))
				if again := w.decision(w.send(q)); !again.Allowed {
					t.Errorf("%s %s, seed %d: refused again: %s", mode, limit, seed, again.Answer)
				}
			}
		}
	}
}
