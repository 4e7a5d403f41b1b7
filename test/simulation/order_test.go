package simulation

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"testing"

	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/quota"
)

var leftBy = regexp.MustCompile(`;r=(\d+)`)

// Answers of the control plane arrive in any order, up to four seconds after those to later calls.
// An answer to a client names at most the tokens of an exact bucket, plus the requests by shares
// that are not charged yet and the cost of a request. It seldom names much less than the control
// plane holds.
func TestAnswersInAnyOrderSayWhatIsLeft(t *testing.T) {
	const mostCost = 4
	late, judged, low := 0, 0, 0
	for _, limit := range []string{
		`"algorithm":"token_bucket","limit":{"quota":200,"window":"1h"}`,
		`"algorithm":"token_bucket","limit":{"quota":200,"window":"1m"}`,
		`"algorithm":"sliding_log","limit":{"quota":200,"window":"10m"}`,
		`"algorithm":"fixed_window","limit":{"quota":200,"window":"1h"}`,
	} {
		for seed := range uint64(100) {
			w := &lone{
				t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 0x0d3)), now: 1e12,
				done: map[uint32]decided{}, asked: map[uint32]quota.Instant{},
				exact: map[exactKey]*exact{}, seen: map[string]int{},
			}
			w.document = fmt.Sprintf(`{"version":"weir/v1","policies":[{"name":"p","mode":"leased",%s,`+
				`"partition":["header:x-key"],"cost":{"header":"x-cost","max":1000},`+
				`"on_failure":{"local_for":"1h","then":"deny"}}]}`, limit)
			back := true
			w.way = func() quota.Instant { // To the control plane at once, and back some seconds later at times.
				if back = !back; !back || w.r.IntN(4) > 0 {
					return quota.Instant(100 + w.r.IntN(900))
				}
				late++
				return quota.Instant(w.r.Int64N(4e6))
			}
			w.start(1, 3)
			for range 60 {
				d := w.decision(w.send(question{worker: w.r.IntN(3), path: "/p0", cost: 1 + w.r.Int64N(mostCost)}))
				if w.r.IntN(3) == 0 {
					w.advance(w.now + quota.Instant(w.r.Int64N(2e6)))
				}
				said := leftBy.FindStringSubmatch(d.Answer.Headers["ratelimit"])
				if len(said) == 0 || !d.Allowed {
					continue
				}
				says, _ := strconv.ParseInt(said[1], 10, 64)
				bucket := d.Hits[0].Bucket
				e, now := w.exactly(question{}, d.Hits[0], d.at)
				e.spend(now, d.Hits[0].Cost)
				if d.Hits[0].Source != filtertest.Central {
					continue
				}
				judged++
				left, _ := e.look(now, 1)
				held, _ := w.nodes[0].process.Held(bucket)
				if over := says - left - w.nodes[0].process.Owed(bucket); over > mostCost {
					t.Errorf("%s, seed %d: %d are left, by %d too many: %s", limit, seed, left, over, d.Answer)
				}
				if e.windows.Quota == 0 && says < w.store.Holds(bucket, e.params.Burst)+held-4*mostCost {
					low++
				}
			}
		}
	}
	t.Logf("%d answers were late, %d judged, %d low", late, judged, low)
	if late < 1000 || judged < 10_000 || low*200 > judged {
		t.Error("the games are too tame, or answers say too little")
	}
}
