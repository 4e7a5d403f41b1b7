package decisions_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/answer/decisions"
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/report"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// world is one VM, with a control plane that answers when the test says so.
type world struct {
	t       *testing.T
	now     quota.Instant
	samples *decisions.Recorder
	reports *report.Reporter
	limiter *limiter.Limiter
	rules   *ruleset.Rules
	request limiter.Request

	sent    []wire.Decisions
	done    func(status int, body []byte)
	unsent  error
	pending bool
}

// tick is a tick; it sends if something is due, and not otherwise.
func (w *world) tick() {
	w.t.Helper()
	due, sent := w.reports.NextDue(w.now), len(w.sent)
	if w.reports.Tick(w.now, nil); w.unsent == nil && (len(w.sent) > sent) != (due <= w.now) {
		w.t.Errorf("%d messages at %d, which were due at %d", len(w.sent)-sent, w.now, due)
	}
}

// policies are many policies that refuse every request, and a policy that allows all.
const (
	policies = 60
	allowing = policies - 1
)

func path(of int) string { return fmt.Sprint("/", of) }

func newWorld(t *testing.T) *world {
	w := &world{t: t, now: 1, rules: &ruleset.Rules{Generation: 1}}
	w.samples = decisions.New(99)
	w.reports = report.New(w, w, "node", 7, 99, report.Parts{wire.SectionDecisions: w.samples})
	w.limiter = limiter.New(limiter.Config{
		Store: bucketstore.New(&shareddatatest.Data{}, [4]byte{}, 1024, 0),
	})
	set := &policy.Set{Identity: policy.Identity{IPv6Prefix: 64,
		Consumer: []policy.Source{{Kind: policy.SourceHeader, Name: "x-key"}}},
		Show: []policy.Part{{Kind: policy.PartPath}}}
	limit, err := policy.NewLimit(policy.Counting{}, 1_000_000, quota.Second, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	for i := range policies {
		cost := int64(2_000_000) // More than there can ever be.
		if i == allowing {
			cost = 1
		}
		set.Policies = append(set.Policies, policy.Policy{
			Name: fmt.Sprint("p", i), Limits: []policy.Limit{limit}, Enforced: policy.EnforcedAll,
			Cost:  policy.Cost{Fixed: cost},
			Match: policy.Match{Paths: []string{path(i)}}, Partition: []policy.Part{{Kind: policy.PartConsumer}},
			Mode: policy.ModeLocal,
		})
	}
	if err := w.rules.Index.Load(wire.AppendSnapshot(nil, wire.Snapshot{Version: 3, Set: set})); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) Now() quota.Instant { return w.now }

func (w *world) Call(_ string, body []byte, _ quota.Span, done func(status int, body []byte)) error {
	if w.pending {
		w.t.Error("two messages are under way")
	}
	if w.unsent != nil {
		return w.unsent
	}
	m, err := wire.DecodeReport(append([]byte(nil), body...))
	if err != nil || m.Sections() != 1<<wire.SectionDecisions || m.Boot != 7 {
		w.t.Fatalf("%+v: %v", m, err)
	}
	w.sent, w.done, w.pending = append(w.sent, *m.Decisions), done, true
	return nil
}

func (w *world) failed() uint64 { return w.reports.Failed[wire.SectionDecisions] }

// answer ends the message under way.
func (w *world) answer(status int) {
	if w.pending {
		w.pending = false
		w.done(status, nil)
	}
}

// flush lets time pass until everything has been reported.
func (w *world) flush() {
	for range 700 {
		w.now += quota.Instant(10 * quota.Millisecond)
		w.tick()
		w.answer(204)
	}
}

// ask makes a request of a consumer, which a policy decides.
func (w *world) ask(of int, consumer string) *match.Attributes {
	w.t.Helper()
	a := &match.Attributes{Path: []byte(path(of)),
		Headers: []match.Header{{Name: []byte("x-key"), Value: []byte(consumer)}}}
	want := limiter.Refused
	if of == allowing {
		want = limiter.Allowed
	}
	if got := w.limiter.Begin(&w.request, w.rules, a, w.now); got != want {
		w.t.Fatalf("policy %d: %v", of, got)
	}
	return a
}

func (w *world) refuse(of int, consumer string) {
	w.samples.Refused(&w.request, w.ask(of, consumer), nil, w.now)
}

func (w *world) decide(consumer string) {
	w.samples.Decided(&w.request, w.ask(allowing, consumer), nil)
}

// total is the sum of all messages for each policy, and the number of buckets.
func (w *world) total() (counts map[uint32]int64, buckets map[uint32]int) {
	counts, buckets = map[uint32]int64{}, map[uint32]int{}
	for _, m := range w.sent {
		for _, c := range m.Counts {
			counts[c.Policy] += c.Refused
		}
		for _, r := range m.Refusals {
			buckets[r.Policy]++
		}
	}
	return counts, buckets
}

// The first refusal is reported at once, later refusals a second later, and nothing is reported
// twice.
func TestRefusalsAreReportedAtOnceAndThenSeldom(t *testing.T) {
	w := newWorld(t)
	w.tick()
	if len(w.sent) != 0 {
		t.Fatal("nothing is reported")
	}
	for range 250 {
		w.refuse(1, "a")
		w.now += quota.Instant(10 * quota.Millisecond)
		w.tick()
		w.answer(204)
	}
	if len(w.sent) != 3 || w.sent[0].Counts[0].Refused != 1 || w.sent[1].Refusals[0].Count < 90 ||
		len(w.sent[1].Refusals) != 1 {
		t.Errorf("%d messages: %+v", len(w.sent), w.sent)
	}
	r := w.sent[1].Refusals[0]
	if string(r.Shown) != "\x00\x02/1" || r.Consumer == (keyhash.Key{}) || r.Retry != 0 ||
		r.Ago > quota.Span(10*quota.Millisecond) {
		t.Errorf("%+v", r)
	}
	w.flush()
	if counts, _ := w.total(); counts[1] != 250 {
		t.Errorf("%d of 250 reported", counts[1])
	}
}

// Requests that a ban refuses are counted and sampled like requests that a policy refuses, by their
// consumer if they name a consumer, and by the key if that is banned.
func TestRequestsThatBansRefuseAreReported(t *testing.T) {
	w := newWorld(t)
	who := match.ConsumerKey([16]byte{}, policy.Source{Kind: policy.SourceHeader, Name: "x-key"}, "a")
	ask := w.ask(allowing, "a")
	for range 7 {
		w.request.Ban = match.ConsumerBan
		w.samples.Banned(&w.request, ask, nil, w.now)
	}
	keys := map[keyhash.Key]int64{}
	for of, n := range map[int]int64{allowing: 2, 1: 3} { // Two keys of one consumer.
		ask := w.ask(of, "a")
		key := w.request.Hits[0].Key
		keys[key] = n
		w.rules.Index.Enforce(&wire.Enforcement{Bans: []wire.Ban{{Key: key}}}, 0)
		for range n {
			if got := w.limiter.Begin(&w.request, w.rules, ask, w.now); got != limiter.Banned {
				t.Fatalf("a banned key of policy %d: %v", of, got)
			}
			w.samples.Banned(&w.request, ask, nil, w.now)
		}
		w.rules.Index.Enforce(&wire.Enforcement{}, 0)
	}
	w.request.Ban = match.AddressBan
	w.samples.Banned(&w.request, &match.Attributes{Path: []byte("/login")}, nil, w.now)
	w.refuse(1, "b")
	w.flush()
	if counts, buckets := w.total(); counts[wire.BanPolicy] != 13 || buckets[wire.BanPolicy] != 4 || counts[1] != 1 {
		t.Fatalf("counted %v in %v buckets", counts, buckets)
	}
	for _, r := range w.sent[0].Refusals {
		switch r.Reason {
		case wire.BanReason + uint8(match.ConsumerBan):
			if r.Count != 7 || r.Consumer != who || string(r.Shown) != "\x00\x03/59" {
				t.Errorf("a banned consumer: %+v, want %v", r, who)
			}
		case wire.BanReason + uint8(match.AddressBan):
			if r.Count != 1 || r.Consumer != (keyhash.Key{}) || string(r.Shown) != "\x00\x06/login" {
				t.Errorf("a banned address: %+v", r)
			}
		case wire.BanReason + uint8(match.KeyBan):
			if r.Count != keys[r.Bucket] || r.Consumer != who {
				t.Errorf("a banned key: %+v, want one of %v", r, keys)
			}
			delete(keys, r.Bucket)
		}
	}
	if len(keys) != 0 {
		t.Errorf("the bans of %v are not reported", keys)
	}
}

// Whatever the stream: counts are exact, and each of up to 32 policies that refuse a caller has a
// sample.
func TestNoPolicyCrowdsOutOthers(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 3))
		w := newWorld(t)
		several := 1 + random.IntN(wire.MaxRefusals)
		exact := map[uint32]int64{}
		for n := range 500 {
			of := 0
			if random.IntN(10) == 0 {
				of = random.IntN(several)
			}
			w.refuse(of, fmt.Sprint(n%(1+random.IntN(400))))
			exact[uint32(of)]++
		}
		w.flush()
		counts, buckets := w.total()
		for of, n := range exact {
			if counts[of] != n || buckets[of] == 0 {
				t.Fatalf("seed %d: of policy %d %d were reported in %d samples, there were %d", seed, of, counts[of],
					buckets[of], n)
			}
		}
	}
}

// One policy's refusals by bucket keep the bounds of space-saving, while no more than describedMost
// are sampled.
func TestCountsOfBucketsKeepTheirBounds(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 5))
		w := newWorld(t)
		exact, total := map[keyhash.Key]int64{}, int64(0)
		for range 2000 {
			w.refuse(0, fmt.Sprint(min(random.IntN(60), random.IntN(60))))
			exact[w.request.Hits[0].Key]++
			if total++; total == 100 {
				break
			}
		}
		w.flush()
		for _, r := range w.sent[0].Refusals {
			if truth := exact[r.Bucket]; r.Count < truth || r.Count-r.Over > truth || r.Over > total/wire.MaxRefusals {
				t.Fatalf("seed %d: reported %d over %d, there were %d of %d", seed, r.Count, r.Over, truth, total)
			}
		}
	}
}

func TestTheHeaviestCallerIsAmongTheCallers(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 11))
		w := newWorld(t)
		heavy := 0
		const total = 40_000
		for n := range total {
			if random.IntN(10) == 0 {
				w.decide("heavy")
				heavy++
			} else {
				w.decide(fmt.Sprint("light ", n))
			}
		}
		w.flush()
		w.ask(allowing, "heavy")
		found := int64(0)
		for _, m := range w.sent {
			for _, c := range m.Callers {
				if c.Bucket == w.request.Hits[0].Key {
					found = c.Count
				}
			}
		}
		if off := found - int64(heavy); off < -1200 || off > 1200+total/wire.MaxCallers {
			t.Errorf("seed %d: reported %d of %d", seed, found, heavy)
		}
	}
}

// Samples of an older policy set are dropped, and so are its decisions.
func TestAnotherPolicySetBeginsAnew(t *testing.T) {
	w := newWorld(t)
	w.refuse(1, "a")
	old := w.rules
	w.rules = &ruleset.Rules{Generation: 2, Index: old.Index}
	w.refuse(2, "a")
	w.rules = old
	w.refuse(3, "a")
	w.flush()
	if counts, _ := w.total(); len(counts) != 1 || counts[2] != 1 {
		t.Errorf("reported %v", counts)
	}
}

func TestFailedReportsAreRepeatedRarely(t *testing.T) {
	for status, most := range map[int]int{0: 40, 503: 40, 404: 2} {
		w := newWorld(t)
		for range 6000 { // a minute
			w.refuse(1, "a")
			w.now += quota.Instant(10 * quota.Millisecond)
			w.tick()
			w.answer(status)
		}
		if n := len(w.sent); n < 1 || n > most || w.failed() == 0 || w.reports.Taken[wire.SectionDecisions] != 0 {
			t.Errorf("status %d: %d messages in a minute", status, n)
		}
	}
	w := newWorld(t)
	w.unsent = errors.New("no healthy host")
	w.refuse(1, "a")
	w.tick()
	if w.failed() != 1 {
		t.Error("a message that cannot be sent is no failure")
	}
}
