package push_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/push"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/store/localstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// shared is a store that several replicas share and that can be away.
type shared struct {
	*localstore.Store
	mu    sync.Mutex
	away  bool
	drawn *[16]byte
	slow  time.Duration // of a read of the policy set
}

func (s *shared) isAway() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errors.New("away")
	}
	return nil
}

func (s *shared) setAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *shared) State(ctx context.Context) (policies.State, error) {
	if err := s.isAway(); err != nil {
		return policies.State{}, err
	}
	s.mu.Lock()
	slow := s.slow
	s.mu.Unlock()
	time.Sleep(slow)
	return s.Store.State(ctx)
}

func (s *shared) Document(
	ctx context.Context, name docs.Name, known uint64,
) (docs.Doc, quota.Instant, error) {
	if err := s.isAway(); err != nil {
		return docs.Doc{}, 0, err
	}
	return s.Store.Document(ctx, name, known)
}

func (s *shared) WriteDocument(ctx context.Context, name docs.Name, w docs.Write) error {
	if err := s.isAway(); err != nil {
		return err
	}
	return s.Store.WriteDocument(ctx, name, w)
}

func (s *shared) Heads(ctx context.Context, candidate [16]byte) (push.Heads, error) {
	if err := s.isAway(); err != nil {
		return push.Heads{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h, err := s.Store.Heads(ctx, candidate)
	if s.drawn != nil {
		h.Secret = *s.drawn
	}
	if s.slow > 0 {
		h.Policies = nil // The policy set is to be read.
	}
	return h, err
}

// drawSecret is a store that has lost everything, and in which another secret was put first.
func (s *shared) drawSecret(secret [16]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drawn = &secret
}

// uncounted is a meter that counts nothing.
type uncounted struct{}

func (uncounted) PenaltyBegun(string, bool) {}
func (uncounted) PenaltiesFull(int)         {}

type replica struct {
	sets   *policies.Service
	people *consumers.Service
	orders *enforcement.Service
	hub    *push.Hub
}

// inBubble runs a test in virtual time with two replicas over one store.
func inBubble(t *testing.T, away bool, test func(t *testing.T, s *shared, one, two replica)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		local, err := localstore.Open(dir, slog.New(slog.DiscardHandler), localstore.Options{SaveByHand: true})
		if err != nil {
			t.Fatal(err)
		}
		s := &shared{Store: local, away: away}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		replicas := [2]replica{}
		for i := range replicas {
			sets, people := policies.New(policies.Config{Store: s,
				Now: time.Now}), consumers.New(consumers.Config{Store: consumers.Kept{In: s}, Now: time.Now})
			orders := enforcement.New(enforcement.Kept{In: s}, time.Now, slog.New(slog.DiscardHandler))
			punished := penalties.New(penalties.Config{Store: s, Sets: sets, Now: time.Now, Meter: uncounted{}})
			hub := push.New(push.Config{
				Policies: sets, Consumers: people, Penalties: punished, Enforcement: orders, Store: s,
				Candidate: [16]byte{byte(i + 1)}, Log: slog.New(slog.DiscardHandler),
			})
			running.Go(func() { hub.Run(ctx) })
			replicas[i] = replica{sets, people, orders, hub}
			synctest.Wait() // The first replica's candidate becomes the secret.
		}
		test(t, s, replicas[0], replicas[1])
		stop()
		running.Wait()
		if err := local.Close(); err != nil {
			t.Error(err)
		}
	})
}

func put(t *testing.T, r replica, expected uint64) {
	t.Helper()
	_, err := r.sets.Put(t.Context(),
		policies.Change{Expected: expected, Document: []byte(policies.EmptyDocument), Format: policydoc.YAML})
	if err != nil {
		t.Fatal(err)
	}
}

type result struct {
	snapshot push.News
	ok       bool
	err      error
	took     time.Duration
}

func wait(t *testing.T, r replica, after uint64, patience time.Duration) <-chan result {
	out := make(chan result, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		start := time.Now()
		snapshot, ok, err := r.hub.Wait(ctx, push.Seen{Version: after})
		out <- result{snapshot, ok, err, time.Since(start)}
	}()
	return out
}

// poll is how often a replica polls its store.
const poll = 300 * time.Millisecond

func TestPush(t *testing.T) {
	inBubble(t, false, func(t *testing.T, _ *shared, one, two replica) {
		near, far := wait(t, one, 0, time.Minute), wait(t, two, 0, time.Minute)
		time.Sleep(time.Second + 70*time.Millisecond)
		put(t, one, 0)
		if r := <-near; !r.ok || r.snapshot.Version != 1 || r.took != time.Second+70*time.Millisecond {
			t.Errorf("on the replica that took it: %+v", r)
		}
		r := <-far
		if late := r.took - time.Second - 70*time.Millisecond; !r.ok || r.snapshot.Version != 1 ||
			late > poll {
			t.Errorf("on another replica after %v: %+v", late, r)
		}
		version, secret, _, err := wire.OpenSnapshot(r.snapshot.Bytes)
		if version != 1 || secret != [16]byte{1} || err != nil {
			t.Errorf("version %d, secret %x, %v", version, secret, err)
		}
		if r := <-wait(t, two, 1, 25*time.Second); r.ok || r.err != nil || r.took != 25*time.Second {
			t.Errorf("nothing new: %+v", r)
		}
		if r := <-wait(t, two, 7, time.Second); !r.ok || r.took > 2*poll {
			t.Errorf("a node that is ahead, when the store was asked anew: %+v", r)
		}
		again, more := <-wait(t, two, 0, time.Second), <-wait(t, two, 0, time.Second)
		if &again.snapshot.Bytes[0] != &more.snapshot.Bytes[0] {
			t.Error("the snapshot is encoded for each node")
		}
	})
}

func TestStoreAway(t *testing.T) {
	inBubble(t, true, func(t *testing.T, s *shared, one, two replica) {
		if err := one.hub.Ready(); err == nil || errors.Is(err, push.ErrNotReady) {
			t.Errorf("after a failed poll: %v", err)
		}
		if r := <-wait(t, one, 0, time.Minute); !errors.Is(r.err, push.ErrNotReady) || r.took != 0 {
			t.Errorf("before the store was reached: %+v", r)
		}
		s.setAway(false)
		time.Sleep(poll + time.Millisecond)
		if err := one.hub.Ready(); err != nil {
			t.Errorf("after a poll: %v", err)
		}
		put(t, one, 0)
		s.setAway(true)
		time.Sleep(poll + time.Millisecond)
		if one.hub.Ready() == nil {
			t.Error("a store that is away is not noticed")
		}
		if r := <-wait(t, one, 0, time.Minute); !r.ok {
			t.Errorf("the set in memory is not served: %+v", r)
		}
		waiting := wait(t, two, 0, time.Minute)
		time.Sleep(4 * time.Second)
		s.setAway(false)
		if r := <-waiting; !r.ok || r.took > 4*time.Second+poll {
			t.Errorf("who waited meanwhile: %+v", r)
		}
	})
}

// The store loses everything, and the same document becomes version 1 again beside another secret.
// A node gets it within 300 ms, and once: buckets, bans and consumers use keys of that secret.
func TestAnotherSecretIsPushed(t *testing.T) {
	inBubble(t, false, func(t *testing.T, s *shared, one, _ replica) {
		put(t, one, 0)
		first := <-wait(t, one, 0, time.Second)
		follow := func(mark string) (result, time.Duration) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			start := time.Now()
			news, ok, err := one.hub.Wait(ctx, push.Seen{Version: 1, Mark: mark})
			return result{snapshot: news, ok: ok, err: err}, time.Since(start)
		}
		go func() {
			time.Sleep(time.Second)
			s.drawSecret([16]byte{9})
		}()
		second, took := follow(first.snapshot.Mark)
		if late := took - time.Second; !second.ok || second.err != nil || late > poll {
			t.Fatalf("after %v: %+v", took, second)
		}
		if _, secret, _, err := wire.OpenSnapshot(second.snapshot.Bytes); secret != [16]byte{9} || err != nil {
			t.Errorf("secret %x, %v", secret, err)
		}
		if r, took := follow(second.snapshot.Mark); r.ok || took != time.Minute {
			t.Errorf("once more after %v: %+v", took, r)
		}
		current, _ := one.sets.Current()
		if v := &current.Version; one.hub.Has(v, 1, first.snapshot.Mark) || !one.hub.Has(v, 1, second.snapshot.Mark) {
			t.Error("a node with the earlier secret counts as one that has the version")
		}
	})
}

// A policy set that takes long to read, or to compile, delays no order of another replica.
func TestASlowTopicDelaysNoOrder(t *testing.T) {
	inBubble(t, false, func(t *testing.T, s *shared, one, two replica) {
		put(t, one, 0)
		time.Sleep(time.Second)
		s.mu.Lock()
		s.slow = time.Minute
		s.mu.Unlock()
		time.Sleep(time.Second) // Both replicas read.
		begin := time.Now()
		change := enforcement.Change{Any: true, Orders: []enforcement.Order{{State: enforcement.Off, Reason: "a test"}}}
		if _, _, err := one.orders.Put(t.Context(), change); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		current, _ := two.sets.Current()
		node := push.Seen{Node: "n", Version: current.Version.Number, WantsEnforcement: true}
		news, ok, err := two.hub.Wait(ctx, node)
		late := time.Since(begin)
		if !ok || err != nil || !wire.IsEnforcement(news.Bytes) || late > poll {
			t.Errorf("after %v: %+v, %v, %v", late, news, ok, err)
		}
	})
}

// A node that is wrong about how many share the buckets hears so within five seconds, and is not
// sent back more often.
func TestAnOutdatedNodeHearsSo(t *testing.T) {
	inBubble(t, false, func(t *testing.T, _ *shared, one, _ replica) {
		put(t, one, 0)
		for change, want := range map[time.Duration]time.Duration{
			0: 5 * time.Second, 4 * time.Second: 5 * time.Second, 11 * time.Second: 15 * time.Second,
			time.Minute: 25 * time.Second,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
			start := time.Now()
			outdated := func(context.Context) bool { return time.Since(start) >= change }
			news, ok, err := one.hub.Wait(ctx, push.Seen{Version: 1, Outdated: outdated})
			if took := time.Since(start); ok || err != nil || took != want {
				t.Errorf("outdated after %v: %+v, %v after %v, want nothing after %v", change, news, err, took, want)
			}
			cancel()
		}
	})
}

func TestNotReadyBeforeTheFirstPoll(t *testing.T) {
	hub := push.New(push.Config{})
	if err := hub.Ready(); !errors.Is(err, push.ErrNotReady) {
		t.Errorf("%v", err)
	}
}

// A change of a consumer reaches nodes at every replica as fast as a policy set does; a node that
// missed too much hears so.
func TestConsumersArePushed(t *testing.T) {
	inBubble(t, false, func(t *testing.T, _ *shared, one, two replica) {
		put(t, one, 0)
		time.Sleep(250 * time.Millisecond)
		follow := func(r replica, revision uint64) (m wire.Consumers, took time.Duration) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			start := time.Now()
			news, ok, err := r.hub.Wait(ctx, push.Seen{Version: 1, Consumers: revision, WantsConsumers: true})
			if !ok || err != nil || news.Version != 0 || wire.DecodeConsumers(news.Bytes, &m) != nil {
				t.Fatalf("%+v, %v, %v", news, ok, err)
			}
			return m, time.Since(start)
		}
		assign := func(key byte, tier string) uint64 {
			t.Helper()
			w := consumers.Write{Key: keyhash.Key{key}, Any: true, Record: &consumers.Record{Tier: tier}}
			revision, err := one.people.Write(t.Context(), consumers.Changes{Writes: []consumers.Write{w}})
			if err != nil {
				t.Fatal(err)
			}
			return revision
		}
		go func() {
			time.Sleep(time.Second)
			assign(1, "premium")
		}()
		m, took := follow(two, 0)
		if late := took - time.Second; late > poll || !m.Complete || len(m.Items) != 1 ||
			string(m.Items[0].Tier) != "premium" {
			t.Errorf("after %v: %+v", late, m)
		}
		second := assign(2, "free")
		if again, took := follow(one, m.Revision); took != 0 || again.Revision != second || !again.Complete ||
			len(again.Items) != 1 || again.Items[0].Key != (keyhash.Key{2}) {
			t.Errorf("only the news: %+v after %v", again, took)
		}
		if r, _ := follow(one, m.Revision-2); r.Complete || r.Revision != second {
			t.Errorf("a revision from before everything that is known: %+v", r)
		}
		// A node that is ahead for longer knows changes that the store has lost: it hears that it
		// may have missed anything.
		if r, took := follow(two, m.Revision+1e9); took != 5*time.Second || r.Complete || r.Revision != second {
			t.Errorf("ahead of the store: %+v after %v", r, took)
		}
		// The other replica is behind: a node that is ahead of it waits until it is not.
		third := assign(3, "free")
		go func() {
			time.Sleep(time.Second)
			assign(4, "free")
		}()
		if r, took := follow(two, third); took < time.Second || !r.Complete || len(r.Items) != 1 {
			t.Errorf("ahead of the replica: %+v after %v", r, took)
		}
	})
}

// A replica that cannot follow the store takes no node back to an older version: a replica that can
// has given it a later version. A store that has the older version again does take it back.
func TestAReplicaThatIsCutOffTakesNoNodeBack(t *testing.T) {
	inBubble(t, false, func(t *testing.T, s *shared, one, _ replica) {
		put(t, one, 0)
		time.Sleep(time.Second)
		ask := func(has uint64, wait time.Duration) (version uint64) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			for version == 0 && ctx.Err() == nil { // A node asks again.
				news, _, err := one.hub.Wait(ctx, push.Seen{Node: "n", Version: has})
				if err != nil {
					t.Fatal(err)
				}
				version = news.Version
			}
			return version
		}
		if got := ask(7, time.Second); got != 1 {
			t.Errorf("a node with a version that is lost gets %d, want 1", got)
		}
		s.setAway(true)
		if got := ask(7, time.Minute); got != 0 {
			t.Errorf("while the store is away a node with version 7 gets %d", got)
		}
		if got := ask(0, time.Second); got != 1 {
			t.Errorf("while the store is away a node without a version gets %d, want 1", got)
		}
		back := make(chan uint64, 1)
		go func() { back <- ask(7, time.Minute) }()
		time.Sleep(10 * time.Second)
		s.setAway(false)
		begin := time.Now()
		if got := <-back; got != 1 || time.Since(begin) > time.Second {
			t.Errorf("the store is back, and a node with version 7 gets %d after %v", got, time.Since(begin))
		}
	})
}

// The same holds for orders: a replica that cannot follow the store does not lift orders that an
// Envoy has from another replica. A store that has lost the orders does.
func TestAReplicaThatIsCutOffLiftsNoOrder(t *testing.T) {
	inBubble(t, false, func(t *testing.T, s *shared, one, _ replica) {
		put(t, one, 0)
		time.Sleep(time.Second)
		lifted := make(chan bool, 1)
		poll := func(wait time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			node := push.Seen{Node: "n", Version: 1, WantsEnforcement: true, Enforcement: 1 << 50}
			for ctx.Err() == nil { // A node asks again.
				news, ok, err := one.hub.Wait(ctx, node)
				if err != nil {
					t.Error(err)
				}
				if ok {
					lifted <- wire.IsEnforcement(news.Bytes)
					return
				}
			}
			lifted <- false
		}
		s.setAway(true)
		go poll(time.Minute)
		if <-lifted {
			t.Error("while the store is away a later order is lifted")
		}
		go poll(time.Minute)
		time.Sleep(20 * time.Second)
		s.setAway(false)
		if !<-lifted {
			t.Error("the store is back without it, and a later order is not lifted")
		}
	})
}

// While a replica cannot follow the store its polls end after some seconds, so that nodes may ask
// another replica.
func TestPollsEndWhileTheStoreIsAway(t *testing.T) {
	inBubble(t, false, func(t *testing.T, s *shared, one, two replica) {
		put(t, one, 0)
		time.Sleep(time.Second)
		if r := <-wait(t, two, 1, 25*time.Second); r.ok || r.took != 25*time.Second {
			t.Errorf("with the store: %+v", r)
		}
		polling := wait(t, two, 1, 25*time.Second)
		time.Sleep(time.Second)
		s.setAway(true)
		if r := <-polling; r.ok || r.err != nil || r.took > 10*time.Second {
			t.Errorf("without the store: %+v", r)
		}
	})
}
