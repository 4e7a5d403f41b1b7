package simulation

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

// A caller goes on though a bucket of its Envoy refuses it, and a window over all Envoys lacks the
// tokens, too. Each answer names the window's wait, and few of them cost a question: one a second
// for each cost at each worker, and four for the window beside where other Envoys share it. When
// more of it is used meanwhile, the answers say so. A caller that waits as it last heard passes.
func TestRefusalsAskFewQuestions(t *testing.T) {
	const seconds, pause = 4, 5000
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log"} {
		for seed := range uint64(24) {
			nodes, workers := 1+int(seed%2), 1+int(seed/2%2)
			mode := []string{"strict", "leased"}[seed/4%2]
			w := &lone{
				t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 0xa401)), now: 1e12,
				done: map[uint32]decided{}, asked: map[uint32]quota.Instant{},
				exact: map[exactKey]*exact{}, seen: map[string]int{},
			}
			w.document = fmt.Sprintf(`{"version":"weir/v1","policies":[{"name":"window","partition":["header:x-key"],"mode":%q,`+
				`"match":{"paths":["/all","/p0"]},"algorithm":%q,"limit":{"quota":20,"window":"1h"},"cost":{"header":"x-cost","max":50}},`+
				`{"name":"own","match":{"paths":["/all"]},"partition":["header:x-key"],"limit":{"quota":1,"window":"10m"},"mode":"local"}]}`,
				mode, algorithm)
			w.start(nodes, workers)
			q := question{path: "/all", cost: 13}
			first := w.decision(w.send(q))
			if w.judge(q, first); !first.Allowed {
				t.Fatalf("seed %d: %s", seed, first.Answer)
			}
			w.advance(w.now + 60e6) // All leased tokens have gone back.
			w.looks = 0
			var last decided
			const refused = seconds * 1_000_000 / pause
			for i := range refused {
				if i == refused/2 {
					more := question{path: "/p0", cost: 6, node: w.r.IntN(nodes), worker: w.r.IntN(workers)}
					w.judge(more, w.decision(w.send(more)))
				}
				q.cost, q.worker = 14+int64(i%3), w.r.IntN(workers)
				last = w.decision(w.send(q))
				if w.judge(q, last); last.Allowed {
					t.Fatalf("seed %d passes: %s", seed, last.Answer)
				}
				wait, _ := strconv.ParseInt(last.Answer.Headers["retry-after"], 10, 64)
				for _, h := range last.Hits {
					e, now := w.exactly(q, h, last.at)
					if _, need := e.look(now, h.Cost); nodes == 1 && quota.Span(wait)*quota.Second < need {
						t.Errorf("%s %s, seed %d: %d s are too short for %d, which takes %d µs", mode, algorithm,
							seed, wait, h.Cost, need)
					}
				}
				w.advance(w.now + pause)
			}
			if most := (seconds + 1) * workers * (3 + 4*(nodes-1)); w.looks == 0 || w.looks > most {
				t.Errorf("%s %s, seed %d: %d questions for %d refusals, at most %d are due", mode, algorithm, seed,
					w.looks, refused, most)
			}
			w.obey(q, last)
			if w.wrong != "" {
				t.Errorf("%s %s, seed %d, %d Envoys: %s: %s", mode, algorithm, seed, nodes, w.wrong, w.why)
			}
		}
	}
}
