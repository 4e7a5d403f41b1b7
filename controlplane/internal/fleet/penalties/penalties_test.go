package penalties_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/store/localstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/wire"
)

// meter counts the service's events.
type meter struct {
	mu    sync.Mutex
	begun map[string]int
	full  int
}

func (m *meter) PenaltyBegun(policy string, shadow bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begun[fmt.Sprint(policy, " ", shadow)]++
}

func (m *meter) PenaltiesFull(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full += n
}

// unknown knows the policy set in force and no version.
type unknown struct{}

// inForce has rules that allow each penalty of the tests.
var inForce = sync.OnceValue(func() *policies.Compiled {
	text := `{"version": "weir/v1", "policies": [{"name": "api", "partition": ["client_ip"],
		"limit": {"quota": 5, "window": "1m"},
		"penalty": {"after": {"refusals": 5, "within": "1m"}, "for": "1h", "max": "7d", "forget": "30d"}}]}`
	dir, err := os.MkdirTemp("", "penalties")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	store, err := localstore.Open(dir, slog.New(slog.DiscardHandler), localstore.Options{SaveByHand: true})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	all := policies.New(policies.Config{Store: store, Now: time.Now})
	change := policies.Change{Any: true, Document: []byte(text), Format: policydoc.JSON}
	if _, err := all.Put(context.Background(), change); err != nil {
		panic(err)
	}
	current, _ := all.Current()
	return current
})

func (unknown) Active() (policies.Active, <-chan struct{}) {
	return policies.Active{Current: inForce()}, nil
}

func (unknown) Load(context.Context, uint64) (v policies.Version, away, err error) {
	return v, nil, policies.ErrNotFound
}

func (unknown) At(context.Context, uint64) (*policies.Compiled, error) {
	return nil, policies.ErrNotFound
}

// plane is a store with services over it, in virtual time.
type plane struct {
	*testing.T
	now   time.Time
	store *localstore.Store
	meter meter
	lost  int
}

func newPlane(t *testing.T) *plane {
	p := &plane{T: t, now: time.UnixMilli(1_800_000_000_000), meter: meter{begun: map[string]int{}}}
	p.store = p.open(t.TempDir())
	return p
}

func (p *plane) open(dir string) *localstore.Store {
	p.Helper()
	s, err := localstore.Open(dir, slog.New(slog.DiscardHandler),
		localstore.Options{SaveByHand: true, Now: func() time.Time { return p.now }})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = s.Close() })
	return s
}

// replica is a further service over the store that is there at each call.
func (p *plane) replica() *penalties.Service { return p.replicaOver(current{p}) }

// replicaOver is a further service over a store of its own.
func (p *plane) replicaOver(store docs.Records) *penalties.Service {
	return penalties.New(penalties.Config{
		Store: store, Sets: unknown{}, Now: func() time.Time { return p.now }, Meter: &p.meter,
		Log: slog.New(slog.DiscardHandler), Lost: func() { p.lost++ },
	})
}

// current is the plane's store of the moment.
type current struct{ *plane }

func (c current) Read(ctx context.Context, t *docs.Topic, keys []keyhash.Key) ([]docs.Record, docs.State, error) {
	return c.store.Read(ctx, t, keys)
}

func (c current) Since(ctx context.Context, t *docs.Topic, after uint64, n int) ([]docs.Record, docs.State, error) {
	return c.store.Since(ctx, t, after, n)
}

func (c current) Scan(
	ctx context.Context, t *docs.Topic, index, cursor string, n int,
) ([]docs.Record, string, error) {
	return c.store.Scan(ctx, t, index, cursor, n)
}

func (c current) Last(ctx context.Context, t *docs.Topic, index string, n int) ([]docs.Record, error) {
	return c.store.Last(ctx, t, index, n)
}

func (c current) Commit(ctx context.Context, t *docs.Topic, change docs.Commit) (uint64, error) {
	return c.store.Commit(ctx, t, change)
}

func key(n int) keyhash.Key { return keyhash.Key{byte(n), byte(n >> 8), byte(n >> 16), 7} }

// offence is a penalty of the n-th caller that lasts a minute.
func (p *plane) offence(n int, known uint64) wire.Offence {
	until := p.now.UnixMilli() + 60_000
	return wire.Offence{Key: key(n), Known: known, Policy: []byte("api"), Level: 1, Until: until,
		Forgotten: until + 3_600_000, Shadow: n%2 == 1}
}

func (p *plane) report(s *penalties.Service, known uint64, callers ...int) {
	p.Helper()
	m := wire.Offences{Node: []byte("e")}
	for _, n := range callers {
		m.Items = append(m.Items, p.offence(n, known))
	}
	if err := s.Report(p.Context(), &m); err != nil {
		p.Fatal(err)
	}
	p.refresh(s)
}

func (p *plane) refresh(s *penalties.Service) {
	p.Helper()
	if err := s.Refresh(p.Context()); err != nil {
		p.Fatal(err)
	}
}

// node follows a service as filters do.
type node struct {
	// version is the version of its policy set.
	version           uint64
	revision, cleared uint64
	known             map[keyhash.Key]penalty.Record
}

func (n *node) follow(s *penalties.Service) (messages int) {
	for ; ; messages++ {
		m, news, _ := s.After(n.revision, n.version)
		if !news {
			return messages
		}
		if n.known == nil || m.Cleared > n.cleared {
			n.known = map[keyhash.Key]penalty.Record{}
		}
		n.revision, n.cleared = m.Revision, m.Cleared
		for _, it := range m.Items {
			heard := penalty.Record{Level: int(it.Level), Until: it.Until}
			if heard.Level == 0 || heard.Beats(n.known[it.Key]) {
				n.known[it.Key] = heard
			}
		}
	}
}

func (n *node) inForce(now time.Time) (count int) {
	for _, r := range n.known {
		if r.InForce(now.UnixMilli()) {
			count++
		}
	}
	return count
}

func TestEveryReplicaTellsItsNodes(t *testing.T) {
	p := newPlane(t)
	one, two := p.replica(), p.replica()
	if _, news, _ := one.After(0, 0); news {
		t.Error("news before the store was read")
	}
	p.refresh(two)
	p.report(one, 0, 1, 2, 3)
	_, _, changed := two.After(0, 0)
	p.refresh(two)
	select {
	case <-changed:
	default:
		t.Error("a node that waits is not woken")
	}
	var near, far node
	near.follow(one)
	far.follow(two)
	if near.inForce(p.now) != 3 || far.inForce(p.now) != 3 || near.revision != far.revision {
		t.Errorf("%+v and %+v", near, far)
	}
	if n, err := two.Pardon(t.Context(), penalties.Query{Keys: []keyhash.Key{key(2)}},
		audit.Entry{Action: "a"}); n != 1 || err != nil {
		t.Errorf("%d pardoned (%v)", n, err)
	}
	p.refresh(one)
	near.follow(one)
	far.follow(two)
	if near.inForce(p.now) != 2 || far.inForce(p.now) != 2 {
		t.Errorf("after a pardon %+v and %+v", near, far)
	}
	p.report(one, far.revision-1, 2) // From before the pardon.
	if list, _ := one.List(penalties.Query{}, 9); len(list) != 2 {
		t.Errorf("a late report undid a pardon: %+v", list)
	}
	if n, err := one.Pardon(t.Context(), penalties.Query{}, audit.Entry{Action: "a"}); n == 0 || err != nil {
		t.Errorf("%d pardoned (%v)", n, err)
	}
	p.refresh(two)
	near.follow(one)
	far.follow(two)
	if len(near.known) != 0 || len(far.known) != 0 {
		t.Errorf("after a pardon of all %+v and %+v", near, far)
	}
	if p.meter.begun["api true"] != 2 || p.meter.begun["api false"] != 2 {
		t.Errorf("counted %v", p.meter.begun)
	}
}

// A flood of offenders reaches nodes in messages of a bounded size, stays within the store's
// maximum, and makes no audit entry for each.
func TestAFloodOfOffenders(t *testing.T) {
	p := newPlane(t)
	s := p.replica()
	const all = 20_000
	for from := 0; from < all; from += wire.MaxOffences {
		m := wire.Offences{Node: []byte("e")}
		for n := from; n < min(from+wire.MaxOffences, all); n++ {
			m.Items = append(m.Items, p.offence(n, 0))
		}
		if err := s.Report(t.Context(), &m); err != nil {
			t.Fatal(err)
		}
	}
	p.refresh(s)
	var n node
	if messages := n.follow(s); n.inForce(p.now) != all || messages != (all+wire.MaxPenalties-1)/wire.MaxPenalties {
		t.Errorf("%d known after %d messages", n.inForce(p.now), messages)
	}
	enforced, shadow := s.Counts()
	if enforced != all/2 || shadow != all/2 {
		t.Errorf("%d and %d in force", enforced, shadow)
	}
	p.now = p.now.Add(auditEvery)
	p.refresh(s)
	entries, err := p.store.Audit(t.Context(), "", 10)
	if err != nil || len(entries) != 1 || string(entries[0].After) != fmt.Sprintf(`{"api":%d}`, all) {
		t.Errorf("audit %+v (%v)", entries, err)
	}
	page, count := s.List(penalties.Query{}, 50)
	if count != 0 || len(page) != 0 {
		t.Errorf("%d listed after their end", count)
	}
	page, count = s.List(penalties.Query{Ended: true}, 50)
	if count != all || len(page) != 50 {
		t.Errorf("%d and %d listed that have ended", count, len(page))
	}
	p.now = p.now.Add(2 * time.Hour)
	p.refresh(s)
	if left, count := s.List(penalties.Query{Ended: true}, 50); count != 0 || len(left) != 0 {
		t.Errorf("%d listed that are forgotten", count)
	}
}

// Wrong reports of a damaged or hostile node take no place, are shown to no operator and are no
// label of a metric. Right reports beside them count. Such a node cannot make a store search for
// ever.
func TestAHostileNodeIsBounded(t *testing.T) {
	p := newPlane(t)
	looks := 0
	s := penalties.New(penalties.Config{
		Store: current{p}, Sets: sets{note: func(uint64) { looks++ }}, Now: func() time.Time { return p.now },
		Meter: &p.meter, Log: slog.New(slog.DiscardHandler),
	})
	m := wire.Offences{Node: []byte("\x1b[2Je")}
	for n, change := range []func(*wire.Offence){
		func(o *wire.Offence) {},
		func(o *wire.Offence) { o.Policy = []byte("\xff") },
		func(o *wire.Offence) { o.Policy = []byte("\x1b[2J") },
		func(o *wire.Offence) { o.Policy = []byte("two words") },
		func(o *wire.Offence) { o.Until += 3 * year; o.Forgotten += 3 * year },
		func(o *wire.Offence) { o.Level, o.Forgotten = 2, o.Until+2*year+2*86_400_000+1 },
		func(o *wire.Offence) { o.Level, o.Forgotten = 64, 1<<44 },
	} {
		o := p.offence(2*n, 0)
		change(&o)
		m.Items = append(m.Items, o)
	}
	if err := s.Report(t.Context(), &m); err != nil {
		t.Fatal(err)
	}
	p.refresh(s)
	list, count := s.List(penalties.Query{Ended: true}, 9)
	if count != 1 || list[0].Key != key(0) || list[0].Node != ".[2Je" {
		t.Errorf("%d are kept: %+v", count, list)
	}
	if len(p.meter.begun) != 1 || p.meter.begun["api false"] != 1 {
		t.Errorf("counted %v", p.meter.begun)
	}
	looks, m.Items = 0, nil
	for n := range wire.MaxOffences {
		o := p.offence(n, 0)
		o.Version = uint64(n)
		m.Items = append(m.Items, o)
	}
	if err := s.Report(t.Context(), &m); err != nil || looks > 4 {
		t.Errorf("a report made %d looks for versions (%v)", looks, err)
	}
}

const year = 365 * 86_400_000

// sets knows no version, and notes which is asked for.
type sets struct {
	unknown
	note func(version uint64)
}

func (s sets) At(_ context.Context, version uint64) (*policies.Compiled, error) {
	s.note(version)
	return nil, policies.ErrNotFound
}

// auditEvery is longer than a replica waits between two entries, and than a penalty lasts here.
const auditEvery = 61 * time.Second

// A store that has lost everything gets back the penalties that a replica knows, also if another
// replica was faster to write to it.
func TestALostStoreGetsPenaltiesBack(t *testing.T) {
	for _, written := range []bool{false, true} {
		p := newPlane(t)
		s := p.replica()
		p.refresh(s)
		p.report(s, 0, 1, 2, 3)
		var n node
		n.follow(s)
		p.now = p.now.Add(10 * time.Second)
		p.store = p.open(t.TempDir())
		if written {
			p.report(p.replica(), 0, 4)
		}
		p.refresh(s)
		fresh := p.replica()
		p.refresh(fresh)
		want := 3
		if written {
			want = 4
		}
		if list, _ := fresh.List(penalties.Query{}, 9); len(list) != want || p.lost != 1 {
			t.Errorf("written %v: %d are back, lost %d times", written, len(list), p.lost)
		}
		before := n.revision
		n.follow(s)
		if n.inForce(p.now) != want || n.revision <= before {
			t.Errorf("written %v: a node knows %+v", written, n)
		}
	}
}
