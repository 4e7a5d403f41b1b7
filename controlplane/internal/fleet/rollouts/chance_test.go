package rollouts_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/rollouts"
	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/wire"
)

const slot = 10 * time.Second

// stretch is a rollout under way. Each side decides perSecond requests by each policy, and refuses
// a share of them, each by chance. The shares differ only for the first policy.
type stretch struct {
	history
	random   *rand.Rand
	policies int
	// The first element is about the rollout's nodes, the second about all other nodes.
	perSecond, share [2]float64

	slots [][2][]series.Side
}

// draw returns a sample of requests of which a share is refused. It skips from one refusal to the
// next.
func (s *stretch) draw(perSecond, share float64) (side series.Side) {
	side.Decided = int64(perSecond * slot.Seconds())
	for at := int64(0); share > 0; side.Refused++ {
		if at += 1 + int64(math.Log(1-s.random.Float64())/math.Log1p(-share)); at > side.Decided {
			break
		}
	}
	return side
}

// pass lets a slot of time pass, and forgets all that is older than the time that is compared.
func (s *stretch) pass() {
	var last [2][]series.Side
	for i := range last {
		for nth := range s.policies {
			share := s.share[i]
			if nth > 0 {
				share = s.share[1]
			}
			last[i] = append(last[i], s.draw(s.perSecond[i], share))
		}
	}
	s.slots = append(s.slots, last)
	s.slots = s.slots[max(0, len(s.slots)-int(series.Window/slot)):]
	s.sides = map[uint64]map[string]series.Side{1: {}, 2: {}}
	for i, version := range []uint64{2, 1} {
		var all series.Side
		for nth := range s.policies {
			var sum series.Side
			for _, one := range s.slots {
				sum.Add(one[i][nth])
			}
			all.Add(sum)
			s.sides[version][fmt.Sprint("p", nth)] = sum
		}
		s.sides[version][wire.AllRequests] = all
	}
}

// stops is after how many slots of a rollout its rule is broken; 0 if it is not within that time.
func (s *stretch) stops(rule string, within time.Duration) int {
	begun := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	r := policies.Rollout{Version: 2, Base: 1, Since: begun, AbortIf: rule}
	for n := range int(within / slot) {
		s.pass()
		if rollouts.Compare(r, nil, &s.history, begun.Add(time.Duration(n+1)*slot)).Verdict == rollouts.Broken {
			return n + 1
		}
	}
	return 0
}

// A rollout whose nodes are as good as the others goes on for hours, though each policy is looked
// at all the time: at most one in a thousand may be stopped by chance.
func TestNoRolloutOfHoursIsStoppedByChance(t *testing.T) {
	const seed = 20281128 // With other seeds, one in a thousand would fail.
	for i, c := range []struct {
		rule      string
		policies  int
		perSecond [2]float64
		share     float64
		hours     time.Duration
	}{
		{"refused > 1x", 20, [2]float64{5, 100}, 0.05, 2},
		{"refused > 1x or waits > 1x", 100, [2]float64{20, 20}, 0.02, 1},
		{"refused > 2x", 20, [2]float64{0.5, 50}, 0.003, 2},
		{"refused > 2x", 20, [2]float64{2, 200}, 0.001, 2},
		{"refused > 5%", 20, [2]float64{2, 0}, 0.05, 2},
		{"refused > 1x", 1, [2]float64{20, 20}, 0.5, 6},
	} {
		for n := range uint64(2) {
			s := &stretch{random: rand.New(rand.NewPCG(seed, uint64(i)<<8+n)), policies: c.policies,
				perSecond: c.perSecond, share: [2]float64{c.share, c.share}}
			if at := s.stops(c.rule, c.hours*time.Hour); at > 0 {
				t.Errorf("%d policies, %s: stopped after %v", c.policies, c.rule, time.Duration(at)*slot)
			}
		}
	}
}

// A version that does harm by one of a hundred policies is stopped after the requests that
// docs/run/rollouts.md says.
func TestHarmIsStoppedSoon(t *testing.T) {
	const seed = 20281128
	for i, c := range []struct {
		rule        string
		its, others float64
		requests    float64 // of each side
	}{
		{"refused > 1x", 0.02, 0.01, 40_000},
		{"refused > 1x", 0.2, 0.1, 4000},
		{"refused > 2x", 0.04, 0.01, 25_000},
		{"refused > 2x", 0.4, 0.1, 2500},
		{"refused > 2x", 1, 0.1, 150},
		{"refused > 2x", 0.2, 0, 700},
		{"refused > 5%", 0.1, 0, 2000},
	} {
		perSecond := math.Ceil(c.requests / 100)
		for n := range uint64(3) {
			s := &stretch{random: rand.New(rand.NewPCG(seed, uint64(i)<<8+n)), policies: 100,
				perSecond: [2]float64{perSecond, perSecond}, share: [2]float64{c.its, c.others}}
			if at := s.stops(c.rule, 10*slot); at == 0 {
				t.Errorf("%s: a share of %v beside %v goes on after %v requests", c.rule, c.its, c.others, c.requests)
			}
		}
	}
}

// Each comparison is wrong as seldom as it promises to be, also of few requests and small shares:
// with a doubt of 3 in fewer than two in e^3.
func TestComparisonsAreWrongAsSeldomAsTheyPromise(t *testing.T) {
	random := rand.New(rand.NewPCG(20281128, 1))
	const tries = 4000
	for _, share := range []float64{0.001, 0.01, 0.1, 0.5, 0.99} {
		wrong := 0
		for range tries {
			s := stretch{random: random}
			its, others := s.draw(10+random.Float64()*200, share), s.draw(10+random.Float64()*200, share)
			rules, err := rollouts.Parse("refused > 1x")
			if err != nil {
				t.Fatal(err)
			}
			if rules[0].Judge(its, others, 3) == rollouts.Broken {
				wrong++
			}
		}
		if most := 2 * math.Exp(-3) * tries; float64(wrong) > most {
			t.Errorf("of two samples of a share of %v %d were said to differ, want at most %v", share, wrong, most)
		}
	}
}
