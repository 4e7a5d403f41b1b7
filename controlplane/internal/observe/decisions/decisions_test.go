package decisions_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
)

// versions is a store of one policy set.
type versions struct{ policies.Store }

const document = `
version: weir/v1
show: [client_ip, "header:x-app"]
tiers: [free, gold]
identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}
policies:
  - {name: a, partition: [client_ip], limit: {quota: 10, window: 1m}}
  - {name: b, partition: [consumer], limits: {free: {quota: 5, window: 1s, burst: 7}, gold: {quota: 50, window: 1s}}, mode: strict}
`

func (versions) Current(context.Context) (uint64, error) { return 1, nil }

func (versions) Load(_ context.Context, number uint64) (policies.Version, error) {
	if number != 1 && number != 2 {
		return policies.Version{}, policies.ErrNotFound
	}
	return policies.Version{Number: number, Format: policydoc.YAML, Document: []byte(document)}, nil
}

func (versions) Append(context.Context, uint64, policies.Version, audit.Entry) error { return nil }

// memory is a store that can be away.
type memory struct {
	list  []decisions.Decision // the newest first
	slots map[series.Slot]map[string][]byte
	away  bool
}

var errAway = errors.New("the store is away")

func (m *memory) AppendDecisions(_ context.Context, list []decisions.Decision) error {
	if m.away {
		return errAway
	}
	for _, d := range list {
		d.ID = decisions.ID(uint64(len(m.list) + 1))
		m.list = append([]decisions.Decision{d}, m.list...)
	}
	return nil
}

func (m *memory) Decisions(_ context.Context, before string, limit int) (page []decisions.Decision, err error) {
	for _, d := range m.list {
		if (before == "" || d.ID < before) && len(page) < limit {
			page = append(page, d)
		}
	}
	if m.away {
		return nil, errAway
	}
	return page, nil
}

func (m *memory) PutSlot(_ context.Context, slot series.Slot, replica string, text []byte) error {
	if m.slots[slot] == nil {
		m.slots[slot] = map[string][]byte{}
	}
	m.slots[slot][replica] = text
	return nil
}

func (m *memory) Slots(_ context.Context, slots []series.Slot) ([]map[string][]byte, error) {
	if m.away {
		return nil, errAway
	}
	var found []map[string][]byte
	for _, slot := range slots {
		found = append(found, m.slots[slot])
	}
	return found, nil
}

// world is some replicas over one store, and a clock.
type world struct {
	t     *testing.T
	store *memory
	now   time.Time
}

func newWorld(t *testing.T) *world {
	return &world{t: t, store: &memory{slots: map[series.Slot]map[string][]byte{}},
		now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
}

func (w *world) replica(name string) *decisions.Service { return w.metered(name, nil) }

func (w *world) metered(name string, meter func(policy, tier string, n int64)) *decisions.Service {
	clock := func() time.Time { return w.now }
	sets := policies.New(policies.Config{Store: versions{}, Now: clock})
	return decisions.New(decisions.Config{Store: w.store, Sets: sets, Replica: name, Now: clock, Meter: meter})
}

func (w *world) note(s *decisions.Service, m wire.Decisions) {
	w.t.Helper()
	m.Node, m.Version = []byte("edge"), 1
	if err := s.Note(w.t.Context(), &m); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) find(
	s *decisions.Service, q decisions.Query, limit int,
) (list []decisions.Decision, next string, complete bool) {
	w.t.Helper()
	list, next, complete, err := s.Find(w.t.Context(), q, limit)
	if err != nil {
		w.t.Fatal(err)
	}
	return list, next, complete
}

func refusal(bucket byte) wire.Refusal {
	return wire.Refusal{CallerCount: wire.CallerCount{Policy: 1, Tier: 1, Bucket: keyhash.Key{bucket},
		Identity: wire.Identity{Consumer: keyhash.Key{9, bucket}}, Count: 4, Over: 1},
		Limit: 1, Reason: 0, Source: 3, Cost: 2, Left: 1, Retry: 500 * quota.Millisecond, Ago: quota.Second}
}

func TestRefusalsAreReportedInWords(t *testing.T) {
	w := newWorld(t)
	s := w.replica("one")
	r := refusal(1)
	r.Shown = append([]byte{0, 4, 10, 1, 2, 3, 1, 5}, "ap\x1bp\xff"...)
	limitless := refusal(2)
	limitless.Policy, limitless.Tier, limitless.Limit, limitless.Retry, limitless.Reason,
		limitless.Consumer = 0, 0, 0, 0, 77, keyhash.Key{}
	w.note(s, wire.Decisions{Refusals: []wire.Refusal{r, limitless}})
	list, _, complete := w.find(s, decisions.Query{}, 10)
	at, ends := w.now.Add(-time.Second), w.now.Add(-time.Second/2)
	want := []decisions.Decision{
		{ID: decisions.ID(2), At: at, Node: "edge", Version: 1, Policy: "a", Limit: "10 per 1m", From: "policy",
			Mode: "leased", Source: "central",
			Reason: "unknown 77", Key: hex.EncodeToString(append([]byte{2}, make([]byte, 15)...)), Cost: 2, Left: 1,
			Count: 3},
		{ID: decisions.ID(1), At: at, Node: "edge", Version: 1, LimitIndex: 1, Policy: "b", Tier: "free",
			Limit: "5 per 1s burst 7", From: "tier", Mode: "strict",
			Source: "central", Reason: "quota", Key: hex.EncodeToString(append([]byte{1}, make([]byte, 15)...)),
			Consumer: hex.EncodeToString(append([]byte{9, 1}, make([]byte, 14)...)),
			Shown:    map[string]string{"client_ip": "10.1.2.3", "header:x-app": "ap.p."},
			Cost:     2, Left: 1, Ends: &ends, Count: 3},
	}
	if !complete || !reflect.DeepEqual(list, want) {
		t.Errorf("got\n%+v, want\n%+v", list, want)
	}
}

// A refusal by a ban is a decision, among the heaviest callers and in the count, under a name that
// no policy can have.
func TestWhatBansRefuseIsKept(t *testing.T) {
	w := newWorld(t)
	s := w.replica("one")
	r := refusal(1)
	r.Policy, r.Tier, r.Limit, r.Reason, r.Cost, r.Left, r.Retry = wire.BanPolicy, 0, 0, wire.BanReason+2, 0, 0, 0
	counts := []wire.RefusedCount{{Policy: wire.BanPolicy, Refused: 40}}
	w.note(s, wire.Decisions{Refusals: []wire.Refusal{r}, Counts: counts})
	list, _, _ := w.find(s, decisions.Query{}, 10)
	if len(list) != 1 || list[0].Policy != policies.Banned || list[0].Reason != "ban_of_consumer" ||
		list[0].From != "ban" || list[0].Consumer != r.Consumer.String() || list[0].Limit != "" {
		t.Fatalf("%+v", list)
	}
	if top := s.Top(t.Context(), decisions.ByRefused, policies.Banned, "", 5); top.Refused != 40 ||
		len(top.Callers) != 1 || top.Callers[0].Consumer != r.Consumer.String() || top.Callers[0].Count != r.Count {
		t.Errorf("%+v", top)
	}
}

// Reports about policies, tiers or limits that the version does not have are dropped, and an
// unknown version is an error.
func TestWhatDoesNotFitIsDropped(t *testing.T) {
	w := newWorld(t)
	s := w.replica("one")
	for _, spoil := range []func(*wire.Refusal){
		func(r *wire.Refusal) { r.Limit = 3 }, func(r *wire.Refusal) { r.Limit = 0 },
		func(r *wire.Refusal) { r.Policy = 9 }, func(r *wire.Refusal) { r.Tier = 3 },
	} {
		r := refusal(1)
		spoil(&r)
		w.note(s, wire.Decisions{Refusals: []wire.Refusal{r}, Callers: []wire.CallerCount{r.CallerCount},
			Counts: []wire.RefusedCount{{Policy: 77, Tier: 3, Refused: 1}}})
	}
	if list, _, _ := w.find(s, decisions.Query{}, 10); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	if err := s.Note(t.Context(), &wire.Decisions{Version: 7}); !errors.Is(err, policies.ErrNotFound) {
		t.Errorf("an unknown version: %v", err)
	}
}

func TestRefusalsAreFoundByConsumerAndPolicy(t *testing.T) {
	w := newWorld(t)
	one, other := w.replica("one"), w.replica("other")
	for n := range byte(30) {
		w.note(one, wire.Decisions{Refusals: []wire.Refusal{refusal(n)}})
		w.now = w.now.Add(time.Second)
	}
	consumer := keyhash.Key{9, 7}
	for query, want := range map[*decisions.Query]int{
		{}: 30, {Consumer: &consumer}: 1, {Policy: "b"}: 30, {Policy: "a"}: 0,
		{Since: w.now.Add(-10500 * time.Millisecond)}: 9,
	} {
		total, pages := 0, 0
		for q := *query; ; pages++ {
			page, next, _ := w.find(other, q, 7)
			total += len(page)
			if q.Before = next; next == "" || pages > 30 {
				break
			}
		}
		if total != want {
			t.Errorf("%+v: %d refusals, want %d", query, total, want)
		}
	}
	if _, _, _, err := one.Find(t.Context(), decisions.Query{Before: "x"}, 1); !errors.Is(err, decisions.ErrCursor) {
		t.Errorf("an invented cursor: %v", err)
	}
	w.store.away = true
	if list, _, complete := w.find(one, decisions.Query{}, 100); len(list) != 30 || complete {
		t.Errorf("without the store the replica knows %d, complete %v", len(list), complete)
	}
	if list, _, _ := w.find(other, decisions.Query{}, 100); len(list) != 0 {
		t.Errorf("another replica knows %d", len(list))
	}
	w.store.away = false
	w.now = w.now.Add(decisions.Age + time.Minute)
	if list, _, _ := w.find(one, decisions.Query{}, 100); len(list) != 0 {
		t.Errorf("%d are shown for too long", len(list))
	}
}

// Refusals during an outage of the store are kept once it is back, up to the number that a replica
// remembers, whichever replica is asked first.
func TestRefusalsOfAnOutageAreKept(t *testing.T) {
	for name, asks := range map[string]bool{"a query comes first": true, "another refusal does": false} {
		w := newWorld(t)
		one := w.replica("one")
		const during = 1100
		w.store.away = true
		for n := range during {
			r := refusal(byte(n))
			r.Bucket[2] = byte(n >> 8)
			if err := one.Note(t.Context(),
				&wire.Decisions{Version: 1, Node: []byte("n"), Refusals: []wire.Refusal{r}}); !errors.Is(err, errAway) {
				t.Fatalf("%s: refusal %d: %v", name, n, err)
			}
			w.now = w.now.Add(100 * time.Millisecond)
		}
		w.store.away = false
		want := 1000
		if !asks {
			w.now = w.now.Add(time.Minute)
			w.note(one, wire.Decisions{Refusals: []wire.Refusal{refusal(1)}})
			want++
		}
		if list, _, complete := w.find(one, decisions.Query{}, 2000); len(list) != want || !complete {
			t.Errorf("%s: %d of the outage are found, want %d; complete %v", name, len(list), want, complete)
		}
		if list, _, _ := w.find(one, decisions.Query{}, 2000); len(list) != want {
			t.Errorf("%s: asked again, there are %d", name, len(list))
		}
	}
}

// A flood can neither grow the memory nor crowd out another policy.
func TestWhatIsKeptIsBounded(t *testing.T) {
	w := newWorld(t)
	s := w.replica("one")
	for n := range 200 {
		r := refusal(byte(n))
		w.note(s, wire.Decisions{Refusals: []wire.Refusal{r, r}})
	}
	r := refusal(1)
	r.Policy, r.Tier, r.Limit = 0, 0, 0
	r.Bucket[1] = 1
	w.note(s, wire.Decisions{Refusals: []wire.Refusal{r}})
	if n := len(w.store.list); n != 26 || w.store.list[0].Policy != "a" {
		t.Errorf("%d are kept of one second, the last of %s", n, w.store.list[0].Policy)
	}
	w.now = w.now.Add(5 * time.Second)
	w.note(s, wire.Decisions{Refusals: []wire.Refusal{refusal(1)}})
	if n := len(w.store.list); n != 26 {
		t.Errorf("the same bucket is kept again after 5 s: %d", n)
	}
	w.now = w.now.Add(6 * time.Second)
	w.note(s, wire.Decisions{Refusals: []wire.Refusal{refusal(1)}})
	// Each of the 25 buckets had come once more, too soon; now all of these are due.
	if n := len(w.store.list); n != 26+25 {
		t.Errorf("the same buckets are not kept again after 11 s: %d", n)
	}
}

// Refusals that came too soon are kept once they are due, also where new callers are refused so
// often that there is no room for all.
func TestAFloodOfNewCallersHoldsUpNoRefusalThatIsDue(t *testing.T) {
	w := newWorld(t)
	s := w.replica("one")
	for n := range 20 {
		r := refusal(byte(n))
		w.note(s, wire.Decisions{Refusals: []wire.Refusal{r, r}})
	}
	for second := range 15 {
		w.now = w.now.Add(time.Second)
		var flood []wire.Refusal
		for n := range 60 {
			r := refusal(byte(n))
			r.Bucket[1] = byte(second + 1)
			flood = append(flood, r)
		}
		w.note(s, wire.Decisions{Refusals: flood})
	}
	again, key := 0, refusal(0).Bucket
	for n := range 20 {
		key[0] = refusal(byte(n)).Bucket[0]
		for _, d := range w.store.list {
			if d.Key == key.String() {
				again++
			}
		}
	}
	if again != 40 {
		t.Errorf("%d refusals of 20 callers are kept, want two of each", again)
	}
}

func TestTopOverAllReplicas(t *testing.T) {
	w := newWorld(t)
	refused := map[string]int64{}
	meter := func(policy, tier string, n int64) { refused[policy+"/"+tier] += n }
	one, other := w.metered("one", meter), w.metered("other", meter)
	heavy, light := refusal(1), refusal(2)
	heavy.Count, heavy.Over, light.Count, light.Over = 100, 3, 10, 0
	for range 3 {
		w.note(one, wire.Decisions{Refusals: []wire.Refusal{light, heavy},
			Counts: []wire.RefusedCount{{Policy: 1, Tier: 1, Refused: 120}}})
		w.note(other, wire.Decisions{Refusals: []wire.Refusal{heavy},
			Callers: []wire.CallerCount{{Policy: 0, Bucket: keyhash.Key{5}, Count: 160}},
			Counts:  []wire.RefusedCount{{Policy: 1, Tier: 1, Refused: 100}}})
		w.now = w.now.Add(6 * time.Second)
	}
	// A policy that is not in the set is not counted.
	w.note(one, wire.Decisions{Counts: []wire.RefusedCount{{Policy: 99, Refused: 5}}})
	w.note(other, wire.Decisions{})
	if len(refused) != 1 || refused["b/free"] != 660 {
		t.Errorf("the meter received %v", refused)
	}
	for _, s := range []*decisions.Service{one, other} {
		top := s.Top(t.Context(), decisions.ByRefused, "", "", 10)
		if len(top.Callers) != 2 || top.Callers[0].Count != 600 || top.Callers[0].Over != 18 ||
			top.Callers[1].Count != 30 || top.Refused != 660 || !top.Complete {
			t.Errorf("%+v", top)
		}
		if c := top.Callers[0]; c.Policy != "b" || c.Tier != "free" || c.Consumer == "" {
			t.Errorf("%+v", c)
		}
		if top := s.Top(t.Context(), decisions.ByRequests, "a", "", 10); len(top.Callers) != 1 ||
			top.Callers[0].Count != 480 {
			t.Errorf("%+v", top)
		}
		if top := s.Top(t.Context(), decisions.ByRefused, "b", "gold", 10); len(top.Callers) != 0 || top.Refused != 0 {
			t.Errorf("%+v", top)
		}
	}
	w.now = w.now.Add(11 * time.Minute)
	if top := one.Top(t.Context(), decisions.ByRefused, "", "", 10); len(top.Callers) != 0 {
		t.Errorf("after two spans: %+v", top)
	}
	w.store.away = true
	if top := one.Top(t.Context(), decisions.ByRefused, "", "", 10); top.Complete {
		t.Error("complete without the store")
	}
}

// The bounds of space-saving, against an exact count of skewed, uniform and adversarial streams.
func TestSummaryKeepsItsBounds(t *testing.T) {
	for round := range uint64(60) {
		random := rand.New(rand.NewPCG(round, 7))
		room := 1 + random.IntN(60)
		s := decisions.NewSummary(room)
		zipf := rand.NewZipf(random, 1.01+random.Float64(), 1, 500)
		exact, total := map[string]int64{}, int64(0)
		for n := range 3000 {
			key := fmt.Sprint(zipf.Uint64())
			switch round % 3 {
			case 1:
				key = fmt.Sprint(random.IntN(200))
			case 2: // A key that comes back among many that come once.
				if key = "again"; n%4 > 0 {
					key = fmt.Sprint("once ", n)
				}
			}
			weight := 1 + random.Int64N(5)
			s.Add(key, weight, 0)
			exact[key] += weight
			total += weight
		}
		if s.Total() != total {
			t.Fatalf("round %d: total %d, want %d", round, s.Total(), total)
		}
		found, last := map[string]bool{}, int64(1<<62)
		for _, c := range s.Top(room) {
			found[c.Key] = true
			if truth := exact[c.Key]; c.Count < truth || c.Count-c.Over > truth || c.Over > total/int64(room) ||
				c.Count > last {
				t.Fatalf("round %d, %d counters of %d: %s has %d, said %d over %d", round, room, total, c.Key, truth,
					c.Count, c.Over)
			}
			last = c.Count
		}
		for key, truth := range exact {
			if truth > total/int64(room) && !found[key] {
				t.Fatalf("round %d: %s with %d of %d is not among %d", round, key, truth, total, room)
			}
		}
	}
}

// While two versions are in force, each version that refuses a caller is shown. The counts add up
// to all refusals, including refusals that came again so soon that they are no entries of their
// own.
func TestVersionsThatRefuseACallerAreAllShown(t *testing.T) {
	w := newWorld(t)
	s, consumer := w.replica("one"), keyhash.Key{9, 1}
	for _, report := range []struct {
		version uint64
		count   int64
	}{{2, 10}, {1, 40}, {2, 5}, {1, 7}} {
		r := refusal(1)
		r.Count, r.Over = report.count, 0
		m := wire.Decisions{Node: []byte("edge"), Version: report.version, Refusals: []wire.Refusal{r}}
		if err := s.Note(t.Context(), &m); err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(time.Second)
	}
	shown := func(q decisions.Query) (rows int, of [3]int64) {
		list, _, _ := w.find(s, q, 10)
		for _, d := range list {
			of[d.Version] += d.Count
		}
		return len(list), of
	}
	if rows, of := shown(decisions.Query{}); rows != 2 || of != [3]int64{0, 40, 10} {
		t.Errorf("all callers: %d rows with %v", rows, of)
	}
	if rows, of := shown(decisions.Query{Consumer: &consumer}); rows != 4 || of != [3]int64{0, 47, 15} {
		t.Errorf("the caller: %d rows with %v", rows, of)
	}
	list, _, _ := w.find(s, decisions.Query{}, 1)
	if top := s.Top(t.Context(), decisions.ByRefused, "", "", 5); len(top.Callers) != 1 || top.Callers[0].Count != 62 ||
		!list[0].At.Equal(w.now.Add(-2*time.Second)) {
		t.Errorf("%+v beside %+v", top, list)
	}
	// Without a question it is kept as soon as it is due.
	r := refusal(1)
	w.note(s, wire.Decisions{Refusals: []wire.Refusal{r}})
	w.now = w.now.Add(10 * time.Second)
	if rows, of := shown(decisions.Query{}); rows != 5 || of != [3]int64{0, 47 + r.Count - r.Over, 15} {
		t.Errorf("when it is due: %d rows with %v", rows, of)
	}
}
