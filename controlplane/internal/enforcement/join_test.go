package enforcement_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/enforcement"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// ban bans a key of one byte and reports whether that is stored.
func (r *replica) ban(key byte) bool {
	r.t.Helper()
	b := enforcement.Ban{Policy: "p", Key: keyhash.Key{key}.String(), Reason: fmt.Sprint("ban ", key)}
	_, durable, err := r.Ban(r.t.Context(), b, audit.Entry{Action: "ban", Reason: b.Reason})
	if err != nil {
		r.t.Fatal(err)
	}
	return durable
}

// lift lifts the ban of a key.
func (r *replica) lift(key byte) {
	r.t.Helper()
	if _, err := r.Unban(r.t.Context(), keyhash.Key{key}.String(), audit.Entry{Action: "lift"}); err != nil {
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
		s.set(func(s *store) { s.away = true })
		for i, r := range []*replica{one, two} {
			for n := range wire.MaxBans/2 + 10 {
				b := enforcement.Ban{Policy: "p", Key: keyhash.Key{byte(i), byte(n >> 8), byte(n)}.String()}
				if _, _, err := r.Ban(t.Context(), b, audit.Entry{}); err != nil {
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
			!strings.Contains(log, "dropped=20") {
			t.Errorf("log %s", log)
		}
	})
}

var bansGames = flag.Int("games", 300, "how many random games of bans to play")

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

func playBans(t *testing.T, seed uint64, s *store, one, two *replica) {
	random := rand.New(rand.NewPCG(seed, 0))
	replicas, want := []*replica{one, two}, map[byte]bool{}
	var past []enforcement.Document
	for range 40 {
		d, _ := s.now()
		past = append(past, d)
		r, key := replicas[random.IntN(2)], byte(random.IntN(6))
		switch random.IntN(10) {
		case 0:
			s.set(func(s *store) { s.away = !s.away })
		case 1:
			r.cut.Store(!r.cut.Load())
		case 2: // A replica of the store takes over that lacks the last changes.
			old := past[max(0, len(past)-1-random.IntN(3))]
			s.set(func(s *store) { s.held = old })
		case 3, 4, 5:
			_, err := r.Unban(t.Context(), keyhash.Key{key}.String(), audit.Entry{})
			if err == nil {
				want[key] = false
			}
		default:
			r.ban(key)
			want[key] = true
		}
		time.Sleep(time.Duration(10+random.IntN(400)) * time.Millisecond)
	}
	s.set(func(s *store) { s.away = false })
	one.cut.Store(false)
	two.cut.Store(false)
	time.Sleep(2 * time.Second)
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
