package leases_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/gather"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// world is the service's surroundings: sets by version, and a store that grants at a standing
// clock.
type world struct {
	t        *testing.T
	sets     map[uint64]*policies.Compiled
	current  uint64 // on this replica
	stored   uint64 // in the store
	draft    uint64 // rolled out to some of the nodes, 0 for none
	ledgers  map[keyhash.Key]lease.Ledger
	windows  map[keyhash.Key]lease.WindowLedger
	permits  map[keyhash.Key]inflight.Ledger
	asked    [][]leases.Item
	storeErr error
	// failsFrom is the first call that the store fails; 0: none.
	failsFrom int
	setsErr   error
	block     bool // the store answers only when the caller gives up
	settled   bool // it knows of no reservation any more
}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, sets: map[uint64]*policies.Compiled{}, ledgers: map[keyhash.Key]lease.Ledger{},
		windows: map[keyhash.Key]lease.WindowLedger{}, permits: map[keyhash.Key]inflight.Ledger{},
	}
}

// put makes a version known to the store; it becomes current on this replica if it refreshes.
func (w *world) put(number uint64, policyLines ...string) {
	w.t.Helper()
	doc := "version: weir/v1\ntiers: [free, gold]\n" +
		"identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}\npolicies:\n"
	for _, line := range policyLines {
		doc += "  - {" + line + "}\n"
	}
	m := &oneVersion{policies.Version{Number: number, Format: policydoc.YAML, Document: []byte(doc)}}
	c, err := policies.New(policies.Config{Store: m, Now: time.Now}).At(w.t.Context(), number)
	if err != nil {
		w.t.Fatal(err)
	}
	w.sets[number], w.stored = c, number
}

type oneVersion struct{ v policies.Version }

func (o *oneVersion) State(context.Context) (policies.State, error) {
	return policies.State{Current: o.v.Number}, nil
}
func (o *oneVersion) Roll(context.Context, policies.Step) error { return nil }
func (o *oneVersion) Load(context.Context, uint64) (policies.Version, error) {
	return o.v, nil
}
func (o *oneVersion) Append(context.Context, uint64, policies.Version, audit.Entry) error { return nil }
func (o *oneVersion) List(context.Context, uint64, int) ([]policies.Version, error) {
	return nil, nil
}

func (w *world) Active() (policies.Active, <-chan struct{}) {
	active := policies.Active{State: policies.State{Current: w.current, Newest: max(w.current, w.draft)},
		Current: w.sets[w.current]}
	if w.draft != 0 {
		active.State.Rollout, active.Draft = &policies.Rollout{Version: w.draft, Base: w.current,
			Nodes: 50}, w.sets[w.draft]
	}
	return active, nil
}

func (w *world) At(_ context.Context, number uint64) (*policies.Compiled, error) {
	if c := w.sets[number]; c != nil || w.setsErr != nil {
		return c, w.setsErr
	}
	return nil, policies.ErrNotFound
}

func (w *world) Refresh(context.Context) (*policies.Compiled, error) {
	if w.setsErr != nil {
		return nil, w.setsErr
	}
	w.current = w.stored
	return w.sets[w.current], nil
}

func (w *world) Count(context.Context) int64 { return 3 }

func (w *world) Grant(ctx context.Context, items []leases.Item) ([]lease.Grant, error) {
	w.asked = append(w.asked, items)
	if w.failsFrom > 0 && len(w.asked) >= w.failsFrom {
		return nil, errors.New("away")
	}
	if w.block {
		<-ctx.Done()
		late, outlasts := gather.Outlasts(ctx)
		if !outlasts {
			return nil, ctx.Err()
		}
		late(ctx.Err())
	}
	var out []lease.Grant
	for _, it := range items {
		var g lease.Grant
		switch it.Kind {
		case wire.KindSettle:
			if !w.settled {
				g.Waiting = 1
			}
			out = append(out, g)
			continue
		case wire.KindReturn:
			var done lease.Back
			w.ledgers[it.Bucket], done = w.ledgers[it.Bucket].TakeBack(1_000_000, it.Returns.Term, it.Returns.Back)
			out = append(out, lease.Grant{Keep: done.Unused})
			continue
		case wire.KindClaim:
			var a inflight.Answer
			w.permits[it.Bucket], a = w.permits[it.Bucket].Claim(1_000_000, it.Claim)
			out = append(out, leases.Permitted(a))
			continue
		}
		if it.Ask.Windows.Quota != 0 {
			w.windows[it.Bucket], g = w.windows[it.Bucket].Grant(1_000_000, it.Ask)
		} else {
			w.ledgers[it.Bucket], g = w.ledgers[it.Bucket].Grant(1_000_000, it.Ask)
		}
		out = append(out, g)
	}
	return out, w.storeErr
}

const (
	leased = "name: leased, partition: [], limit: {quota: 100, window: 1m}"
	strict = "name: strict, partition: [], limit: {quota: 100, window: 1m}, mode: strict"
	local  = "name: local, partition: [], limit: {quota: 100, window: 1m}, mode: local"
)

func item(bucket byte, index uint32, waiting, keep int64) wire.LeaseItem {
	return wire.LeaseItem{Bucket: keyhash.Key{bucket}, Limit: index, Waiting: waiting, Cost: 1, Keep: keep}
}

func (w *world) service() *leases.Service {
	return leases.New(w.config(func() time.Time { return time.Unix(0, 0) }))
}

// config is of a service on the world; tests add to it.
func (w *world) config(now func() time.Time) leases.Config {
	return leases.Config{Store: w, Sets: w, Nodes: w, Now: now}
}

func (w *world) ask(version uint64, items ...wire.LeaseItem) wire.LeaseReply {
	w.t.Helper()
	reply, err := w.service().Grant(w.t.Context(), wire.LeaseRequest{Seq: 7, Version: version, Items: items})
	if err != nil {
		w.t.Fatal(err)
	}
	if reply.Seq != 7 || reply.Nodes != 3 || len(reply.Items) != len(items) {
		w.t.Errorf("reply %+v", reply)
	}
	return reply
}

func states(r wire.LeaseReply) (out string) {
	for _, a := range r.Items {
		if a.State == wire.ItemUnknown {
			out += "? "
			continue
		}
		out += fmt.Sprintf("%d+%d ", a.Waiting, a.Keep)
	}
	return out
}

func TestGrant(t *testing.T) {
	w := newWorld(t)
	w.put(1, leased, strict, local)
	w.current = 1
	got := w.ask(1, item(1, 0, 2, 5), item(2, 1, 2, 5), item(3, 2, 1, 0), item(4, 3, 1, 0), item(5, 1<<20, 1, 0),
		item(1, 0, 99, 0))
	if states(got) != "2+5 2+0 ? ? ? 93+0 " {
		t.Errorf("answers %s", states(got))
	}
	if last := got.Items[5]; last.Level != 0 || last.NotBefore == 0 {
		t.Errorf("a short grant: %+v", last)
	}
	a := w.asked[0][0].Ask
	want := lease.Ask{Params: w.sets[1].Set.Policies[0].Limits[0].Params, Version: 1 << 24, Waiting: 2, Cost: 1,
		Deadline: lease.Deadline, Keep: 5, Nodes: 3}
	if !reflect.DeepEqual(a, want) {
		t.Errorf("asked %+v, want %+v", a, want)
	}
}

// Windows are asked for at the bucket's own offset, and the reply has the delay of a queue, an hour
// at most.
func TestAlgorithms(t *testing.T) {
	w := newWorld(t)
	w.put(1, "name: a, partition: [], limit: {quota: 100, window: 1m}, algorithm: fixed_window",
		"name: b, partition: [], limit: {quota: 5, window: 1m}, algorithm: sliding_window_counter, mode: strict",
		"name: c, partition: [], limit: {quota: 5, window: 1s, burst: 10}, algorithm: leaky_bucket, max_wait: 10s, "+
			"mode: strict",
		"name: d, partition: [], limit: {quota: 2, window: 366d}")
	w.current = 1
	got := w.ask(1, item(1, 0, 60, 9), item(2, 1, 6, 9), item(3, 2, 3, 0), item(4, 3, 1, 0), item(3, 2, 1, 0),
		item(4, 3, 1, 0))
	if states(got) != "60+3 5+0 3+0 1+0 1+0 1+0 " {
		t.Errorf("answers %s", states(got))
	}
	for i, want := range []quota.Span{2: 0, 4: 600 * quota.Millisecond, 5: quota.Hour} {
		if d := got.Items[i].Delay; d != want {
			t.Errorf("item %d: a delay of %d, want %d", i, d, want)
		}
	}
	for i, a := range w.asked[0][:4] {
		if want := w.sets[1].Set.Policies[i].Limits[0].WindowsOf(a.Bucket); a.Ask.Windows != want {
			t.Errorf("item %d: windows %+v, want %+v", i, a.Ask.Windows, want)
		}
	}
	if w.asked[0][2].Ask.Deadline != 0 || w.asked[0][1].Ask.Keep != 0 {
		t.Errorf("asked %+v", w.asked[0])
	}
}

// Joined items belong to one request: if the store is not asked for one of them, it is not asked
// for any of them.
func TestGroups(t *testing.T) {
	joined := func(it wire.LeaseItem) wire.LeaseItem { it.Joined = true; return it }
	w := newWorld(t)
	w.put(1, leased, strict, local)
	w.current = 1
	got := w.ask(1, joined(item(1, 0, 1, 0)), item(2, 1, 1, 0), // whole
		joined(item(3, 0, 1, 0)), joined(item(4, 9, 1, 0)), item(5, 1, 1, 0), // one is not known
		item(6, 0, 1, 0),
		joined(item(7, 0, 1, 0)), item(7, 1, 1, 0)) // one bucket twice
	if states(got) != "1+0 1+0 0+0 ? 0+0 1+0 0+0 ? " {
		t.Errorf("answers %s", states(got))
	}
	var asked []byte
	for _, it := range w.asked[0] {
		asked = append(asked, it.Bucket[0])
	}
	if string(asked) != "\x01\x02\x06" || leases.Leading(w.asked[0]) != 2 || leases.Leading(w.asked[0][1:]) != 1 {
		t.Errorf("the store was asked for %v", asked)
	}
	// One of a group is stale here: the whole group is asked for again.
	w.put(2, "name: leased, partition: [], limit: {quota: 50, window: 1m}", strict)
	newer := w.sets[2].Set.Policies[0].Limits[0].Params
	w.ledgers[keyhash.Key{8}], _ = lease.Ledger{}.Grant(0,
		lease.Ask{Params: newer, Version: 2 << 24, Waiting: 10, Cost: 1, Nodes: 1})
	w.asked = nil
	got = w.ask(1, item(9, 1, 1, 0), joined(item(10, 1, 1, 0)), item(8, 0, 1, 0))
	if states(got) != "1+0 1+0 1+0 " || len(w.asked) != 2 || len(w.asked[1]) != 2 || leases.Leading(w.asked[1]) != 2 {
		t.Errorf("answers %s, asked %+v", states(got), w.asked)
	}
}

// A node that asks for more than the limit's burst is answered by the ledger's rule like any other.
func TestGreedyNode(t *testing.T) {
	w := newWorld(t)
	w.put(1, leased)
	w.current = 1
	greedy := wire.LeaseItem{Bucket: keyhash.Key{1}, Waiting: 1 << 20, Cost: 1 << 52, Keep: 1 << 52}
	if got := w.ask(1, greedy); states(got) != "0+0 " { // No token is kept while a request lacks the rest.
		t.Errorf("granted %s", states(got))
	}
	if keep := w.asked[0][0].Ask.Keep; keep != 100 {
		t.Errorf("asked to keep %d", keep)
	}
}

func TestVersions(t *testing.T) {
	moved := "name: leased, partition: [], limit: {quota: 50, window: 1m}"
	for _, c := range []struct {
		name    string
		prepare func(w *world)
		version uint64
		want    string
	}{
		{"an empty store", func(w *world) {}, 1, "? ? "},
		{"a node without a version", func(w *world) { w.put(1, leased); w.current = 1 }, 0, "? ? "},
		{"an older version: the policy has moved and has another limit", func(w *world) {
			w.put(1, leased, strict)
			w.put(2, strict, moved)
			w.current = 2
		}, 1, "50+0 60+0 "},
		{"an older version: the policy is gone",
			func(w *world) { w.put(1, leased, strict); w.put(2, strict); w.current = 2 }, 1, "? 60+0 "},
		{"an older version: the policy is local now", func(w *world) {
			w.put(1, leased, strict)
			w.put(2, strict, leased+", mode: local")
			w.current = 2
		}, 1, "? 60+0 "},
		{"a version that nobody remembers", func(w *world) { w.put(9, leased); w.current = 9 }, 5, "? ? "},
		{"a newer version than this replica has seen", func(w *world) {
			w.put(1, strict)
			w.current = 1
			w.put(2, moved, strict)
		}, 2, "50+0 60+0 "},
		{"the store's newest cannot be read here", func(w *world) {
			w.put(1, leased, strict)
			w.current, w.stored, w.setsErr = 1, 2, policies.ErrUnreadable
		}, 1, "60+0 60+0 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			c.prepare(w)
			if got := states(w.ask(c.version, item(1, 0, 60, 0), item(2, 1, 60, 0))); got != c.want {
				t.Errorf("answers %s, want %s", got, c.want)
			}
		})
	}
}

// Another replica has granted under a newer version: this one catches up and asks once more, for
// those buckets alone.
func TestStaleIsRetriedOnce(t *testing.T) {
	w := newWorld(t)
	w.put(1, leased, strict)
	w.current = 1
	w.put(2, "name: leased, partition: [], limit: {quota: 50, window: 1m}", strict)
	newer := w.sets[2].Set.Policies[0].Limits[0].Params
	w.ledgers[keyhash.Key{1}], _ = lease.Ledger{}.Grant(0,
		lease.Ask{Params: newer, Version: 2 << 24, Waiting: 10, Cost: 1, Nodes: 1})
	if got := states(w.ask(1, item(1, 0, 60, 0), item(2, 1, 60, 0))); got != "40+0 60+0 " {
		t.Errorf("answers %s", got)
	}
	if len(w.asked) != 2 || len(w.asked[1]) != 1 || w.asked[1][0].Ask.Version != 2<<24 {
		t.Errorf("asked %+v", w.asked)
	}
	w.asked, w.failsFrom = nil, 2 // The first pass has charged one of them, which is answered.
	w.current = 1
	if r := w.ask(1, item(1, 0, 10, 0), item(2, 1, 10, 0)); states(r) != "0+0 10+0 " ||
		r.Items[0].State != wire.ItemUnavailable || r.Items[1].State != wire.ItemGranted {
		t.Errorf("answers %+v where the second pass fails", r.Items)
	}
	w.failsFrom = 0
	w.stored = 1 // Now the store is behind as well: the node must come back with a newer snapshot.
	w.current, w.asked = 1, nil
	if got := states(w.ask(1, item(1, 0, 60, 0))); got != "? " || len(w.asked) != 2 {
		t.Errorf("answers %s after %d calls", got, len(w.asked))
	}
}

// A store that does not answer costs the first requests their patience and the rest nothing, until
// it answers again.
func TestBreaker(t *testing.T) {
	w := newWorld(t)
	w.put(1, leased)
	w.current, w.storeErr = 1, errors.New("away")
	now := time.Unix(1000, 0)
	breakers := breaker.NewGroup(func() time.Time { return now }, func() float64 { return 0.5 }, nil)
	config := w.config(time.Now)
	config.Breakers = breakers
	s := leases.New(config)
	request := wire.LeaseRequest{Version: 1, Items: []wire.LeaseItem{item(1, 0, 1, 0)}}
	for i, c := range []struct {
		pass  time.Duration
		away  bool
		asked int
		fails bool
	}{
		{0, true, 1, true}, {0, true, 2, true}, {0, true, 3, true}, {0, true, 4, true}, {0, true, 5, true},
		{0, true, 5, true},                       // open: the store is not asked
		{250 * time.Millisecond, true, 6, true},  // one finds out
		{249 * time.Millisecond, false, 6, true}, // it has come back, but no request looks yet
		{time.Millisecond, false, 7, false},
		{0, false, 8, false},
	} {
		now = now.Add(c.pass)
		if w.storeErr = nil; c.away {
			w.storeErr = errors.New("away")
		}
		_, err := s.Grant(t.Context(), request)
		if errors.Is(err, leases.ErrUnavailable) != c.fails || len(w.asked) != c.asked {
			t.Errorf("step %d: %v, asked %d times", i, err, len(w.asked))
		}
	}
}

// A region that does not know its part does not ask the store, and says nothing about it.
func TestOnlyCallsOfTheStoreMoveTheBreaker(t *testing.T) {
	w, h := newWorld(t), newHalf()
	w.put(1, leased)
	w.current, h.known = 1, false
	config := w.config(time.Now)
	config.Breakers = breaker.NewGroup(time.Now, func() float64 { return 0.5 }, nil)
	config.Regions = h
	s := leases.New(config)
	for range 2 * breaker.Tolerated {
		_, err := s.Grant(t.Context(), wire.LeaseRequest{Version: 1, Items: []wire.LeaseItem{item(1, 0, 1, 0)}})
		if !errors.Is(err, leases.ErrPart) || !errors.Is(err, leases.ErrUnavailable) {
			t.Fatalf("without a part: %v", err)
		}
	}
	if config.Breakers.Failing(leases.StoreName) != 0 || len(w.asked) > 0 {
		t.Errorf("the store counts as failing for want of a part, after %d calls", len(w.asked))
	}
}

// A node takes an answer for a sign that the store is there. So a request that asks the store for
// nothing is answered only if the store answers and takes a write, and its answer closes the
// breaker.
func TestAnAnswerSaysThatTheStoreAnswers(t *testing.T) {
	optimistic := "name: optimistic, partition: [], limit: {quota: 100, window: 1m}, mode: optimistic"
	probe := func(bucket byte, index uint32) wire.LeaseItem { return item(bucket, index, 0, 0) }
	for _, c := range []struct {
		name    string
		version uint64
		item    wire.LeaseItem
		want    string
	}{
		{"a look at a leased bucket", 2, probe(1, 0), "0+0 "},
		{"a look at an optimistic bucket", 2, probe(2, 1), "0+0 "},
		{"a look at a local bucket", 2, probe(3, 2), "? "},
		{"a limit that is not known", 2, item(4, 9, 1, 0), "? "},
		{"a policy that is gone", 1, item(5, 1, 1, 0), "? "},
		{"no policy set", 0, probe(0, 0), "? "},
		{"a policy set that is not known", 7, item(6, 0, 1, 0), "? "},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.put(1, leased, strict)
			w.put(2, leased, optimistic, local)
			w.current = 2
			now := time.Unix(1000, 0)
			config := w.config(time.Now)
			config.Breakers = breaker.NewGroup(func() time.Time { return now }, func() float64 { return 0.5 }, nil)
			s := leases.New(config)
			request := wire.LeaseRequest{Version: c.version, Items: []wire.LeaseItem{c.item}}
			w.storeErr = errors.New("away")
			for range breaker.Tolerated {
				if reply, err := s.Grant(t.Context(), request); !errors.Is(err, leases.ErrUnavailable) {
					t.Errorf("the store is away: %s, %v", states(reply), err)
				}
			}
			if config.Breakers.Closed(leases.StoreName) {
				t.Error("the store is taken for there")
			}
			now, w.storeErr, w.asked = now.Add(time.Second), nil, nil
			reply, err := s.Grant(t.Context(), request)
			if got := states(reply); err != nil || got != c.want || !config.Breakers.Closed(leases.StoreName) {
				t.Errorf("the store is back: %s, %v; it is taken for back: %v", got, err,
					config.Breakers.Closed(leases.StoreName))
			}
			wrote := w.asked[len(w.asked)-1][0]
			if wrote.Ask.Waiting != 1 || wrote.Ask.Params.Den != 1 ||
				wrote.Bucket[0] != c.item.Bucket[0] || wrote.Bucket == c.item.Bucket {
				t.Errorf("the last that the store was asked: %+v", wrote)
			}
		})
	}
}

func TestSilentStoreIsGivenUp(t *testing.T) {
	w := newWorld(t)
	w.put(1, leased)
	w.current, w.block = 1, true
	_, err := w.service().Grant(t.Context(), wire.LeaseRequest{Version: 1, Items: []wire.LeaseItem{item(1, 0, 1, 0)}})
	if !errors.Is(err, leases.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// Callers that go away say nothing about the store.
func TestImpatientCallersDoNotTripTheBreaker(t *testing.T) {
	w := newWorld(t)
	w.put(1, leased)
	w.current, w.block = 1, true
	s := w.service()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		if _, err := s.Grant(gone, wire.LeaseRequest{Version: 1,
			Items: []wire.LeaseItem{item(1, 0, 1, 0)}}); !errors.Is(err, leases.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	w.block = false
	if _, err := s.Grant(t.Context(),
		wire.LeaseRequest{Version: 1, Items: []wire.LeaseItem{item(1, 0, 1, 0)}}); err != nil {
		t.Errorf("%v", err)
	}
}

// Requests that shared a call of the store are one failure of it, whatever their number.
func TestASharedFailureCountsOnce(t *testing.T) {
	w := newWorld(t)
	w.put(1, leased)
	w.current = 1
	s := w.service()
	grant := func() error {
		_, err := s.Grant(t.Context(), wire.LeaseRequest{Version: 1, Items: []wire.LeaseItem{item(1, 0, 1, 0)}})
		return err
	}
	lost := errors.New("no answer")
	for range breaker.Tolerated - 1 {
		w.storeErr = lost
		if err := grant(); !errors.Is(err, lost) {
			t.Fatal(err)
		}
		w.storeErr = &gather.Shared{Err: lost}
		for range 20 {
			if err := grant(); !errors.Is(err, lost) || !errors.Is(err, leases.ErrUnavailable) {
				t.Fatalf("%v: the store is left alone already", err)
			}
		}
	}
	w.storeErr = lost
	if err := grant(); !errors.Is(err, lost) {
		t.Fatal(err)
	}
	if err := grant(); errors.Is(err, lost) {
		t.Error("the store is not left alone")
	}
}

// DoubtfulUntil covers every ledger: from then on an absent bucket cannot be a bucket that was in
// use before.
func TestDoubtfulOutlastsEveryLedger(t *testing.T) {
	for _, limit := range []string{
		"limit: {quota: 100, window: 1m}", "limit: {quota: 1, window: 1s}", "limit: {quota: 5, window: 366d}",
		"limit: {quota: 1000, window: 1s, burst: 3}", "limit: {quota: 7, window: 4s}",
		"limit: {quota: 7, window: 4s}, algorithm: fixed_window",
		"limit: {quota: 7, window: 4s}, algorithm: sliding_window, subwindows: 3",
		"limit: {quota: 7, window: 1s}, algorithm: sliding_log",
		"limit: {quota: 7, window: 1s}, algorithm: sliding_window_counter, mode: strict",
	} {
		w := newWorld(t)
		w.put(1, "name: a, partition: [], "+limit)
		l := w.sets[1].Set.Policies[0].Limits[0]
		p := l.Params
		ask := lease.Ask{
			Params: p, Windows: l.WindowsOf(keyhash.Key{9: 77}), Version: 1, Waiting: p.Burst / 2, Cost: 1,
			Deadline: lease.Deadline, Keep: p.Burst, Nodes: 1,
		}
		for now := quota.Instant(3_900_000); now < 4_200_000; now += 777 {
			last, until := quota.Instant(0), leases.DoubtfulUntil(now, ask)
			if ask.Windows.Quota != 0 {
				l, _ := lease.WindowLedger{}.Grant(now, ask)
				last = l.Forgettable()
			} else {
				l, _ := lease.Ledger{}.Grant(now, ask)
				last = l.Forgettable()
			}
			if last > until {
				t.Fatalf("%s: used up at %d, forgettable at %d, doubtful until %d", limit, now, last, until)
			}
		}
		if leases.DoubtfulUntil(0, ask) != 0 {
			t.Error("in doubt without a loss")
		}
	}
}
