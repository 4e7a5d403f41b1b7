package enforcement_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// hashes returns the hashes of a key of one byte.
func hashes(key byte) []string { return []string{keyhash.Key{key}.String()} }

// ban bans a key of one byte and reports whether that is stored.
func (r *replica) ban(key byte) bool {
	r.t.Helper()
	b := enforcement.Ban{Policy: "p", Reason: fmt.Sprint("ban ", key)}
	durable, err := r.Ban(r.t.Context(), b, hashes(key), audit.Entry{Action: "ban", Reason: b.Reason})
	if err != nil {
		r.t.Fatal(err)
	}
	return durable
}

// lift lifts the ban of a key.
func (r *replica) lift(key byte) {
	r.t.Helper()
	if _, _, err := r.Unban(r.t.Context(), hashes(key), audit.Entry{Action: "lift"}); err != nil {
		r.t.Fatal(err)
	}
}

// banned are the keys that a node of the replica refuses.
func (r *replica) banned() (keys []byte) {
	r.t.Helper()
	m, _ := r.message(0, true)
	for _, b := range m.Bans {
		keys = append(keys, b.Key[0])
	}
	return keys
}

// Bans that are made and lifted through two replicas while the store is away are joined key by key.
func TestBansOfTwoReplicasAreJoined(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, one, two *replica) {
		for key := range byte(4) {
			one.ban(key)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		s.set(func(s *store) { s.away = true })
		if one.ban(10) || two.ban(20) {
			t.Error("a ban counts as stored while the store is away")
		}
		time.Sleep(time.Millisecond)
		one.lift(1)
		two.lift(2)
		two.lift(3)
		time.Sleep(10 * time.Millisecond)
		one.ban(3) // Later than the other's lifting.
		s.set(func(s *store) { s.away = false })
		time.Sleep(time.Second)
		for name, r := range map[string]*replica{"one": one, "two": two} {
			if got := r.banned(); !slices.Equal(got, []byte{0, 3, 10, 20}) {
				t.Errorf("%s bans %v", name, got)
			}
			if _, durable, err := r.Held(); !durable || err != nil {
				t.Errorf("%s: durable %v, %v", name, durable, err)
			}
		}
		writes := len(must(s.now()))
		time.Sleep(time.Minute)
		if again := len(must(s.now())); again != writes {
			t.Errorf("%d entries became %d though nothing happened", writes, again)
		}
	})
}

func must(_ enforcement.Document, kept []string) []string { return kept }

// More bans than fit, made on two replicas, leave the earlier ones, and the log says how many were
// dropped.
func TestTooManyBansOfTwoReplicas(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, one, two *replica) {
		var lost atomic.Int32
		one.OnLost(func() { lost.Add(1) })
		two.OnLost(func() { lost.Add(1) })
		s.set(func(s *store) { s.away = true })
		for i, r := range []*replica{one, two} {
			for n := range wire.MaxBans/2 + 10 {
				hashes := []string{keyhash.Key{byte(i), byte(n >> 8), byte(n)}.String()}
				if _, err := r.Ban(t.Context(), enforcement.Ban{Policy: "p"}, hashes, audit.Entry{}); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
		}
		s.set(func(s *store) { s.away = false })
		time.Sleep(time.Second)
		if d, _ := s.now(); len(d.Bans.List) != wire.MaxBans {
			t.Errorf("%d bans are stored", len(d.Bans.List))
		}
		if log := one.log.String() + two.log.String(); !strings.Contains(log, "there are more than fit") ||
			!strings.Contains(log, "dropped=20") || lost.Load() != 1 {
			t.Errorf("%d losses, log %s", lost.Load(), log)
		}
		s.set(func(s *store) { s.held = enforcement.Document{} })
		time.Sleep(time.Second)
		if d, _ := s.now(); len(d.Bans.List) != wire.MaxBans || lost.Load() != 2 {
			t.Errorf("%d bans came back, %d losses", len(d.Bans.List), lost.Load())
		}
		if log := one.log.String() + two.log.String(); !strings.Contains(log, "the store had lost orders or bans") {
			t.Errorf("log %s", log)
		}
	})
}

var bansGames = flag.Int("games", 300, "how many random games of bans, and of orders, to play")

// Whatever two replicas ban and lift, while the store is away for one or both of them and falls
// back to an older state: in the end each key is as its last change said, on both and in the store.
func TestGamesOfBans(t *testing.T) {
	for range *bansGames {
		seed := rand.Uint64()
		inBubble(t, func(t *testing.T, s *store, one, two *replica) { playBans(t, seed, s, one, two) })
		if t.Failed() {
			return
		}
	}
}

// playFaults has two replicas make changes at random, while the store goes away for one or both of
// them and falls back to an older state. It returns when all have had time to agree.
func playFaults(random *rand.Rand, s *store, replicas []*replica, change func(r *replica)) {
	var past []enforcement.Document
	for range 40 {
		d, _ := s.now()
		past = append(past, d)
		r := replicas[random.IntN(2)]
		switch random.IntN(10) {
		case 0:
			s.set(func(s *store) { s.away = !s.away })
		case 1:
			r.cut.Store(!r.cut.Load())
		case 2: // A replica of the store takes over that lacks the last changes.
			old := past[max(0, len(past)-1-random.IntN(3))]
			s.set(func(s *store) { s.held = old })
		default:
			change(r)
		}
		time.Sleep(time.Duration(10+random.IntN(400)) * time.Millisecond)
	}
	s.set(func(s *store) { s.away = false })
	for _, r := range replicas {
		r.cut.Store(false)
	}
	time.Sleep(2 * time.Second)
}

func playBans(t *testing.T, seed uint64, s *store, one, two *replica) {
	random := rand.New(rand.NewPCG(seed, 0))
	replicas, want := []*replica{one, two}, map[byte]bool{}
	playFaults(random, s, replicas, func(r *replica) {
		key := byte(random.IntN(6))
		if random.IntN(7) >= 3 {
			r.ban(key)
			want[key] = true
		} else if _, _, err := r.Unban(t.Context(), hashes(key), audit.Entry{}); err == nil {
			want[key] = false
		}
	})
	var expected []byte
	for key := range byte(6) {
		if want[key] {
			expected = append(expected, key)
		}
	}
	for i, r := range replicas {
		if got := r.banned(); !slices.Equal(got, expected) {
			t.Errorf("seed %d: replica %d bans %v, want %v", seed, i+1, got, expected)
		}
	}
	d, _ := s.now()
	if len(d.Bans.List) != len(expected) {
		t.Errorf("seed %d: %d bans are stored, want %d", seed, len(d.Bans.List), len(expected))
	}
}

// about orders something about a policy through a replica, on top of its own orders. An empty state
// lifts the order. It reports false if that is so already, since a list that says the same orders
// nothing.
func (r *replica) about(policy string, state enforcement.State) bool {
	r.t.Helper()
	for {
		d, _, err := r.Held()
		if err != nil {
			r.t.Fatal(err)
		}
		same := func(o enforcement.Order) bool { return o.Policy == policy }
		at := slices.IndexFunc(d.Orders.List, same)
		if at < 0 && state == "" || at >= 0 && d.Orders.List[at].State == state {
			return false
		}
		list := slices.DeleteFunc(slices.Clone(d.Orders.List), same)
		if state != "" {
			list = append(list, enforcement.Order{Policy: policy, State: state, Percent: 100, Reason: "x"})
		}
		_, _, err = r.Put(r.t.Context(), enforcement.Change{Expected: d.Orders.Revision, Orders: list})
		if err == nil {
			return true
		}
		if !errors.Is(err, errs.Conflict) { // Another replica's has just become known.
			r.t.Fatal(err)
		}
	}
}

// ordered returns the orders of a replica, policy by policy.
func (r *replica) ordered() string {
	r.t.Helper()
	d, _, err := r.Held()
	if err != nil {
		r.t.Fatal(err)
	}
	var all []string
	for _, o := range d.Orders.List {
		all = append(all, o.Policy+" "+string(o.State))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// Orders that are given and lifted through two replicas while the store is away are joined policy
// by policy. An order that replaces all orders replaces the orders that the other replica knew
// then, and no later orders.
func TestOrdersOfTwoReplicasAreJoined(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, one, two *replica) {
		one.about("a", enforcement.Off)
		one.about("b", enforcement.Off)
		time.Sleep(time.Second)
		s.set(func(s *store) { s.away = true })
		one.about("c", enforcement.Off)
		time.Sleep(time.Millisecond)
		two.about("d", enforcement.Shadow)
		one.about("a", "")
		time.Sleep(time.Millisecond)
		two.about("b", enforcement.Shadow)
		s.set(func(s *store) { s.away = false })
		time.Sleep(time.Second)
		want := "b shadow, c off, d shadow"
		for name, r := range map[string]*replica{"one": one, "two": two} {
			if got := r.ordered(); got != want {
				t.Errorf("%s orders %s, want %s", name, got, want)
			}
		}
		s.set(func(s *store) { s.away = true })
		time.Sleep(time.Second)
		two.about("c", enforcement.Shadow)
		time.Sleep(time.Millisecond)
		replaces := enforcement.Change{Any: true, Orders: []enforcement.Order{order(enforcement.Enforce, "all")}}
		if _, _, err := one.Put(t.Context(), replaces); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		two.about("d", "")
		two.about("e", enforcement.Off)
		s.set(func(s *store) { s.away = false })
		time.Sleep(time.Second)
		for name, r := range map[string]*replica{"one": one, "two": two} {
			if got := r.ordered(); got != " enforce, e off" {
				t.Errorf("%s orders %s after all were replaced", name, got)
			}
		}
	})
}

// Two replicas take orders at random while the store goes away, and goes back: in the end all that
// was acknowledged last about each policy is in force on both, and stored.
func TestRandomOrders(t *testing.T) {
	for range *bansGames {
		seed := rand.Uint64()
		inBubble(t, func(t *testing.T, s *store, one, two *replica) { playOrders(t, seed, s, one, two) })
	}
}

func playOrders(t *testing.T, seed uint64, s *store, one, two *replica) {
	random := rand.New(rand.NewPCG(seed, 1))
	replicas, want := []*replica{one, two}, map[string]enforcement.State{}
	playFaults(random, s, replicas, func(r *replica) {
		about := string(rune('a' + random.IntN(5)))
		state := []enforcement.State{"", enforcement.Off, enforcement.Shadow}[random.IntN(3)]
		if r.about(about, state) {
			want[about] = state
		}
	})
	var expected []string
	for about, state := range want {
		if state != "" {
			expected = append(expected, about+" "+string(state))
		}
	}
	slices.Sort(expected)
	for i, r := range replicas {
		if got := r.ordered(); got != strings.Join(expected, ", ") {
			t.Errorf("seed %d: replica %d orders %s, want %v", seed, i+1, got, expected)
		}
	}
}
