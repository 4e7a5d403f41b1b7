package enforcement_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/every"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
	"github.com/weir-proxy/weir/test/support/logtest"
)

var errAway = errors.New("away")

// store is a store that replicas share. It can be away, for one of them or all, or lose an answer.
type store struct {
	mu   sync.Mutex
	held enforcement.Document
	kept []string // the reasons of entries
	away bool
	// mute: writes are made, and their answers are lost.
	mute bool
}

func (s *store) Enforcement(context.Context, uint64) (enforcement.Document, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return enforcement.Document{}, errAway
	}
	return s.held, nil
}

func (s *store) WriteEnforcement(_ context.Context, w enforcement.Write) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.away:
		return errAway
	case s.held.Revision != w.Expected:
		return errs.Conflict
	}
	for _, e := range w.Entries {
		s.kept = append(s.kept, e.Reason)
	}
	if s.held = w.Document; s.mute {
		return errAway
	}
	return nil
}

// now returns the stored document, and the reasons of the entries.
func (s *store) now() (d enforcement.Document, kept []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held, slices.Clone(s.kept)
}

func (s *store) set(change func(*store)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// inBubble runs a test in virtual time with two replicas over one store; each polls it. A replica's
// way to the store can be cut.
func inBubble(t *testing.T, test func(t *testing.T, s *store, one, two *replica)) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		replicas := [2]*replica{}
		for i := range replicas {
			r := &replica{t: t, Store: s}
			r.Service = enforcement.New(r, time.Now, slog.New(slog.NewTextHandler(&r.log, nil)))
			running.Go(func() {
				follow := func(ctx context.Context) { _ = r.Follow(ctx, nil) }
				follow(ctx)
				every.Period(ctx, 200*time.Millisecond, follow)
			})
			replicas[i] = r
		}
		synctest.Wait()
		test(t, s, replicas[0], replicas[1])
		stop()
		running.Wait()
	})
}

type replica struct {
	*enforcement.Service
	enforcement.Store
	t   *testing.T
	cut atomic.Bool
	log logtest.Buffer
}

func (r *replica) Enforcement(ctx context.Context, known uint64) (enforcement.Document, error) {
	if r.cut.Load() {
		return enforcement.Document{}, errAway
	}
	return r.Store.Enforcement(ctx, known)
}

func order(state enforcement.State, reason string) enforcement.Order {
	return enforcement.Order{State: state, Percent: 100, Reason: reason}
}

func reasons(orders []enforcement.Order) string {
	var all []string
	for _, o := range orders {
		all = append(all, o.Reason)
	}
	return strings.Join(all, " ")
}

// put replaces the orders and expects them to be stored or not.
func (r *replica) put(expected uint64, durable bool, orders ...enforcement.Order) enforcement.Orders {
	r.t.Helper()
	got, stored, err := r.Put(r.t.Context(),
		enforcement.Change{Expected: expected, Orders: orders,
			Entry: audit.Entry{Action: "test", By: "me", Reason: reasons(orders)}})
	if err != nil || stored != durable {
		r.t.Fatalf("stored %v, want %v: %v", stored, durable, err)
	}
	return got
}

// expect says which reasons are in force, and whether the store has them.
func (r *replica) expect(name, want string, durable bool) enforcement.Document {
	r.t.Helper()
	d, stored, err := r.Held()
	if got := reasons(d.Orders.List); got != want || stored != durable || err != nil {
		r.t.Errorf("%s: %q is in force, durable %v: %v", name, got, stored, err)
	}
	return d
}

func (r *replica) message(revision uint64, waited bool) (m wire.Enforcement, news bool) {
	r.t.Helper()
	b, news, _ := r.After(revision, waited)
	if news {
		if err := wire.DecodeEnforcement(b, &m); err != nil {
			r.t.Fatal(err)
		}
	}
	return m, news
}

func TestOrdersReachAllReplicas(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, one, two *replica) {
		one.expect("at first", "", true)
		if _, news := one.message(0, true); news {
			t.Error("there is news for a new node")
		}
		until := time.Now().Add(time.Hour)
		first := one.put(0, true, enforcement.Order{State: enforcement.Off, Percent: 25, Policy: "api", Tier: "free",
			Reason: "a", Expires: &until})
		m, news := one.message(0, false)
		if !news || len(m.Orders) != 1 || m.Orders[0].State != policy.EnforcedOff || m.Orders[0].Percent != 25 ||
			string(m.Orders[0].Policy) != "api" ||
			string(m.Orders[0].Tier) != "free" || m.Orders[0].Expires != until.UnixMilli() {
			t.Errorf("%v %+v", news, m)
		}
		time.Sleep(250 * time.Millisecond)
		two.expect("on the other replica", "a", true)
		if _, _, err := two.Put(t.Context(),
			enforcement.Change{Expected: 0,
				Entry: audit.Entry{Action: "test", By: "you"}}); !errors.Is(err, errs.Conflict) {
			t.Errorf("expecting none: %v", err)
		}
		// An order with the same meaning keeps its author and its time.
		time.Sleep(time.Minute)
		second, _, err := two.Put(t.Context(),
			enforcement.Change{Expected: first.Revision, Entry: audit.Entry{Action: "test", By: "you"},
				Orders: []enforcement.Order{{State: enforcement.Off, Percent: 25, Policy: "api", Tier: "free",
					Reason:  "a",
					Expires: &until}, order(enforcement.Shadow, "b")}})
		if err != nil || second.List[0].By != "me" || !second.List[0].Since.Equal(first.Time) ||
			second.List[1].By != "you" || second.Revision <= first.Revision {
			t.Errorf("%+v %v", second, err)
		}
		if _, kept := s.now(); kept[len(kept)-1] != "b" {
			t.Errorf("the audit has as reasons %q, want that of the new order last", kept)
		}
		counts, _, durable := two.Counts()
		if counts[enforcement.Off] != 1 || counts[enforcement.Shadow] != 1 || counts[enforcement.Enforce] != 0 ||
			!durable {
			t.Errorf("%v %v", counts, durable)
		}
		time.Sleep(time.Hour)
		if counts, _, _ = two.Counts(); counts[enforcement.Off] != 0 {
			t.Errorf("an order that has ended is counted: %v", counts)
		}
		// A dry run changes nothing.
		dry, _, err := one.Put(t.Context(),
			enforcement.Change{Any: true, DryRun: true, Orders: []enforcement.Order{order(enforcement.Off, "c")}})
		if err != nil || len(dry.List) != 1 || dry.List[0].Reason != "c" {
			t.Errorf("%+v %v", dry, err)
		}
		one.expect("after a dry run", "a b", true)
		if stored, _ := s.now(); stored.Orders.Revision != second.Revision {
			t.Errorf("stored %+v", stored)
		}
	})
}

func TestOrdersWorkWithoutTheStore(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, one, two *replica) {
		first := one.put(0, true, order(enforcement.Shadow, "before"))
		s.set(func(s *store) { s.away = true })
		second := one.put(first.Revision, false, order(enforcement.Off, "meanwhile"))
		d := one.expect("while the store is away", "meanwhile", false)
		if m, news := one.message(first.Revision, false); !news || m.Orders[0].State != policy.EnforcedOff ||
			m.Revision != d.Revision {
			t.Errorf("nodes receive %v %+v", news, m)
		}
		// A node that has heard so does not hear otherwise from a replica that has not, however
		// long it waits.
		time.Sleep(time.Hour)
		if _, news := two.message(d.Revision, true); news {
			t.Error("the other replica lifts an order that it does not know")
		}
		s.set(func(s *store) { s.away = false })
		time.Sleep(250 * time.Millisecond)
		one.expect("the store is back", "meanwhile", true)
		time.Sleep(250 * time.Millisecond)
		two.expect("the store is back", "meanwhile", true)
		stored, kept := s.now()
		if stored.Revision != d.Revision || stored.Orders.Revision != second.Revision {
			t.Errorf("stored at %d, %d was sent", stored.Revision, d.Revision)
		}
		if got := strings.Join(kept, ", "); got != "before, meanwhile" {
			t.Errorf("audit %s", got)
		}
		text := one.log.String()
		if !strings.Contains(text, "held in memory") || !strings.Contains(text, "are stored") {
			t.Errorf("log %s", text)
		}
	})
}

func TestTheLaterOfTwoChangesStays(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, one, two *replica) {
		// Two replicas without a store: both hear of an order, the second later.
		s.set(func(s *store) { s.away = true })
		one.put(0, false, order(enforcement.Off, "first"))
		time.Sleep(time.Second)
		two.put(0, false, order(enforcement.Shadow, "second"))
		s.set(func(s *store) { s.away = false })
		time.Sleep(time.Second)
		d := one.expect("the later one", "second", true)
		two.expect("the later one", "second", true)
		// A replica that is cut off from the store is overtaken by a replica that is not.
		one.cut.Store(true)
		one.put(d.Orders.Revision, false, order(enforcement.Off, "cut off"))
		cut := one.expect("cut off", "cut off", false)
		time.Sleep(time.Second)
		two.put(d.Orders.Revision, true, order(enforcement.Enforce, "later"))
		one.cut.Store(false)
		time.Sleep(time.Second)
		if last := one.expect("joined", "later", true); last.Revision <= cut.Revision {
			t.Errorf("nodes of the other replica would stay at %d; %d is in force", cut.Revision, last.Revision)
		}
		if !strings.Contains(one.log.String(), "a later change has replaced the orders") {
			t.Errorf("log %s", one.log.String())
		}
		two.put(two.expect("joined", "later", true).Orders.Revision, true)
		// And the other way round: the orders in memory are later than the store's orders.
		one.cut.Store(true)
		two.put(two.expect("lifted", "", true).Orders.Revision, true, order(enforcement.Shadow, "stored"))
		time.Sleep(time.Second)
		if _, _, err := one.Put(t.Context(),
			enforcement.Change{Any: true, Orders: []enforcement.Order{order(enforcement.Off, "held")},
				Entry: audit.Entry{Action: "test"}}); err != nil {
			t.Error(err)
		}
		one.cut.Store(false)
		time.Sleep(time.Second)
		two.expect("what is later wins", "held", true)
		_, kept := s.now()
		slices.Sort(kept[:2]) // Which replica finds the store first is not said.
		if got := strings.Join(kept, ", "); got != "first, second, later, cut off, , stored, held" {
			t.Errorf("audit %s", got)
		}
	})
}

func TestAStoreThatLosesEverythingGetsItBack(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, one, two *replica) {
		one.put(0, true, order(enforcement.Off, "stays"))
		d := one.expect("stored", "stays", true)
		s.set(func(s *store) { s.held = enforcement.Document{} })
		time.Sleep(time.Second)
		two.expect("given back", "stays", true)
		stored, kept := s.now()
		if got := strings.Join(kept, ", "); got != "stays, the store had lost it" {
			t.Errorf("audit %s", got)
		}
		if stored.Revision < d.Revision {
			t.Errorf("stored %+v", stored)
		}
		// It is logged, also if the answer to the restoring is lost.
		const said = "the store had lost orders or bans"
		before := strings.Count(one.log.String()+two.log.String(), said)
		s.set(func(s *store) { s.held, s.mute = enforcement.Document{}, true })
		time.Sleep(time.Second)
		s.set(func(s *store) { s.mute = false })
		time.Sleep(time.Second + time.Millisecond) // No poll comes at the same moment.
		if now := strings.Count(one.log.String()+two.log.String(), said); before != 1 || now != 2 {
			t.Errorf("%d losses are said, then %d", before, now)
		}
		// A write that was made, and whose answer was lost, is no other change.
		s.set(func(s *store) { s.mute = true })
		two.put(d.Orders.Revision, false, order(enforcement.Off, "mute"))
		s.set(func(s *store) { s.mute = false })
		told := two.expect("not known to be stored", "mute", false)
		time.Sleep(time.Second)
		if now := two.expect("found to be stored", "mute", true); now.Revision != told.Revision {
			t.Errorf("stored again at %d", now.Revision)
		}
	})
}

// A node that obeys orders which no replica knows any more goes on for five seconds after the store
// has answered, and then hears the store's orders.
func TestANodeIsOverruled(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, one, _ *replica) {
		one.put(0, true, order(enforcement.Off, "known"))
		d := one.expect("stored", "known", true)
		s.set(func(s *store) { s.away = true })
		time.Sleep(time.Minute)
		s.set(func(s *store) { s.away = false })
		time.Sleep(4900 * time.Millisecond)
		if _, news := one.message(d.Revision+1, true); news {
			t.Error("overruled too early")
		}
		time.Sleep(400 * time.Millisecond)
		if _, news := one.message(d.Revision+1, false); news {
			t.Error("overruled before it has waited")
		}
		if m, news := one.message(d.Revision+1, true); !news || m.Revision != d.Revision {
			t.Errorf("not overruled: %v %+v", news, m)
		}
	})
}

// A replica that has never reached the store knows nothing, and still obeys who replaces whatever
// there is.
func TestABlindReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{away: true}
		s.held = enforcement.Document{Revision: 7,
			Bans: enforcement.Bans{Stamp: enforcement.Stamp{ID: "b", Time: time.Now().Add(-time.Hour)},
				List: []enforcement.Ban{{Policy: "api", Key: "000000000000000000000000000000aa", Reason: "abuse"}}},
			Orders: enforcement.Orders{Stamp: enforcement.Stamp{ID: "o", Revision: 7, Time: time.Now().Add(-time.Hour)},
				List: []enforcement.Order{order(enforcement.Shadow, "old")}}}
		r := enforcement.New(s, time.Now, slog.New(slog.DiscardHandler))
		if _, _, err := r.Held(); !errors.Is(err, enforcement.ErrUnknown) {
			t.Errorf("%v", err)
		}
		if _, _, err := r.Put(t.Context(), enforcement.Change{Expected: 7}); !errors.Is(err, enforcement.ErrUnknown) {
			t.Errorf("%v", err)
		}
		if _, err := r.Ban(t.Context(), enforcement.Ban{}, []string{"0000000000000000000000000000000b"},
			audit.Entry{}); !errors.Is(err, enforcement.ErrUnknown) {
			t.Errorf("%v", err)
		}
		if _, durable, err := r.Put(t.Context(),
			enforcement.Change{Any: true, Orders: []enforcement.Order{order(enforcement.Off, "new")}}); err != nil ||
			durable {
			t.Errorf("%v %v", durable, err)
		}
		s.set(func(s *store) { s.away = false })
		if err := r.Follow(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		// It knew of no bans, so it has not lifted any.
		if d, durable, _ := r.Held(); !durable || len(d.Bans.List) != 1 || d.Orders.List[0].Reason != "new" ||
			s.held.Orders.List[0].Reason != "new" || d.Revision <= 7 {
			t.Errorf("%v %+v", durable, d)
		}
	})
}

// Bans are kept by key, end by themselves, make room for new bans, and merge with orders given
// elsewhere meanwhile.
func TestBans(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, one, two *replica) {
		key := func(n int) string { return fmt.Sprintf("%032x", n) }
		ban := func(r *replica, n int, end time.Duration, reason string) (bool, error) {
			b := enforcement.Ban{Policy: "api", Reason: reason}
			if end > 0 {
				until := time.Now().Add(end)
				b.Expires = &until
			}
			durable, err := r.Ban(t.Context(), b, []string{key(n)}, audit.Entry{Action: "key.ban", By: "me"})
			return durable, err
		}
		for n, end := range []time.Duration{3: time.Minute, 2: 0, 1: 0} {
			if durable, err := ban(one, n, end, "first"); !durable || err != nil {
				t.Fatal(durable, err)
			}
		}
		if _, err := ban(one, 2, time.Hour, "second"); err != nil {
			t.Fatal(err)
		}
		m, news := one.message(0, false)
		if !news || len(m.Bans) != 4 || m.Bans[0].Key != (keyhash.Key{}) || m.Bans[3].Key != (keyhash.Key{15: 3}) ||
			m.Bans[2].Expires == 0 || m.Bans[1].Expires != 0 {
			t.Errorf("%+v", m.Bans)
		}
		if b := one.Banned(key(2)); b == nil || b.Reason != "second" || b.By != "me" || one.Banned(key(7)) != nil {
			t.Errorf("%+v", b)
		}
		time.Sleep(time.Minute)
		if one.Banned(key(3)) != nil {
			t.Error("a ban does not end")
		}
		if _, _, err := two.Unban(t.Context(), []string{key(3)},
			audit.Entry{Action: "key.unban"}); !errors.Is(err, enforcement.ErrNotBanned) {
			t.Errorf("lifting an order that has ended: %v", err)
		}
		// One replica bans while it is cut off, the other switches off: both stay.
		one.cut.Store(true)
		if durable, err := ban(one, 5, 0, "cut off"); durable || err != nil {
			t.Fatal(durable, err)
		}
		two.put(0, true, order(enforcement.Off, "elsewhere"))
		one.cut.Store(false)
		time.Sleep(time.Second)
		if d := two.expect("both", "elsewhere", true); len(d.Bans.List) != 4 || two.Banned(key(5)) == nil {
			t.Errorf("%+v", d.Bans.List)
		}
		if _, durable, err := two.Unban(t.Context(), []string{key(5)},
			audit.Entry{Action: "key.unban"}); !durable || err != nil ||
			two.Banned(key(5)) != nil {
			t.Errorf("%v %v", durable, err)
		}
		for n := 100; ; n++ {
			_, err := ban(two, n, 0, "many")
			if errors.Is(err, enforcement.ErrTooMany) && n == 100+wire.MaxBans-3 {
				break
			}
			if err != nil || n > 2000 {
				t.Fatalf("ban %d: %v", n, err)
			}
		}
	})
}

// For a while, nodes hear of the latest buckets that were changed, and the audit has no entry for
// that.
func TestFreedBuckets(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, one, _ *replica) {
		free := func(n byte, full bool) {
			t.Helper()
			if err := one.Free(t.Context(), []keyhash.Key{{n}}, full, audit.Entry{By: "me"}); err != nil {
				t.Fatal(err)
			}
		}
		free(1, false)
		time.Sleep(time.Minute)
		free(2, true)
		m, _ := one.message(0, false)
		if len(m.Freed) != 2 || m.Freed[0].Bucket != (keyhash.Key{1}) || m.Freed[0].Full || !m.Freed[1].Full ||
			m.Freed[1].Revision != m.Revision || m.Freed[0].Revision >= m.Revision {
			t.Errorf("%+v", m)
		}
		for n := range enforcement.MaxFreed {
			one.free(256 + n)
		}
		if _, err := one.ReserveFree(1); !errors.Is(err, errs.TooManyRequests) {
			t.Errorf("one more than nodes can hear of: %v", err)
		}
		m, _ = one.message(0, false)
		if n := len(m.Freed); n != wire.MaxFreed || m.Freed[n-1].Bucket != (keyhash.Key{8, 255}) {
			t.Errorf("%d are sent", len(m.Freed))
		}
		time.Sleep(time.Hour)
		done, err := one.ReserveFree(enforcement.MaxFreed - 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := one.ReserveFree(2); err == nil {
			t.Error("two changes at a time have room for one")
		}
		done()
		free(4, true)
		_, kept := s.now()
		if m, _ = one.message(0, false); len(m.Freed) != 1 || len(kept) != 0 {
			t.Errorf("%d are sent, %d entries", len(m.Freed), len(kept))
		}
	})
}
