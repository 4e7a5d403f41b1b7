package wasm

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/quota"
)

// A quarter of a million keys that were never seen before, through one worker and a small table:
// memory and the number of shared keys are flat once the table is there, and keys that were
// exhausted before stay so: the table drops the fullest buckets first.
// TestMoreKeysThanTheTableHolds is about keys that are crowded out.
func TestFloodOfKeys(t *testing.T) {
	const flood, active, early = 250_000, 64, 20_000
	h := start(t, envoytest.Options{Workers: 1,
		PluginConfig: alone(setWith(dialectsOff, limits("api", "local", "10/1h", thenDeny)))})
	exhausted := func(i int) envoytest.Request { return get("x-key", "exhausted-"+strconv.Itoa(i)) }
	for i := range active {
		if n := count(t, h, 0, 12, exhausted(i)); n != 10 {
			t.Fatalf("%d of 12 passed", n)
		}
	}
	var memory uint64
	var keys, fresh, wrong, steady int
	watched := newLaw(t, 10, quota.Hour, 10)
	request := get("x-key", "")
	key := &request.Headers[len(request.Headers)-1][1]
	begin := h.Monotonic()
	for i := range flood {
		*key = "flood-" + strconv.Itoa(i)
		s := h.Worker(0).Request(request)
		if s.State() == envoytest.Continued {
			s.Respond(200, nil)
		} else {
			wrong++ // a key that was never seen before
		}
		fresh++
		switch {
		case i == early:
			memory, keys = h.MemoryBytes(0), len(h.SharedKeys())
		case i%1000 == 999:
			h.Advance(10 * time.Millisecond)
			// A caller whose key is exhausted asks again, all the time.
			if ok, _ := passes(t, h, 0, exhausted(0)); ok {
				watched.use(h.Monotonic()-begin, 1)
			}
			steady++
		}
	}
	if m, k := h.MemoryBytes(0), len(h.SharedKeys()); m != memory || k != keys {
		t.Errorf("memory went from %d to %d bytes, the shared keys from %d to %d", memory, m, keys, k)
	}
	back := 0
	for i := 1; i < active; i++ {
		if ok, _ := passes(t, h, 0, exhausted(i)); ok {
			back++
		}
	}
	h.Advance(20 * time.Millisecond)
	t.Logf("%d bytes, %d shared keys; %d evicted; %.3f %% of %d new keys refused wrongly; of %d exhausted keys %d "+
		"passed afterwards",
		memory, keys, counter(h, "buckets.evicted"), 100*float64(wrong)/float64(fresh), fresh, active-1, back)
	if back > 0 {
		t.Errorf("%d of %d exhausted keys passed after the flood", back, active-1)
	}
	// Less than one token has come back in the time of the flood.
	if watched.used > 1 {
		t.Errorf("an active key got %d more than its limit", watched.used)
	}
}

// Keys that are in use while others flood the table keep their state: one decision after another
// agrees with exact buckets.
func TestActiveKeysInAFlood(t *testing.T) {
	const active = 200
	h := start(t, envoytest.Options{Workers: 1,
		PluginConfig: alone(setWith(dialectsOff, limits("api", "local", "20/1s burst 20", thenDeny)))})
	p, err := quota.NewParams(20, quota.Second, 20)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(3, 1))
	states := make([]quota.State, active)
	over, under, decisions := 0, 0, 0
	for i := range 60_000 {
		key := r.IntN(active)
		name := "active-" + strconv.Itoa(key)
		ok, _ := passes(t, h, 0, get("x-key", name))
		next, want := p.Take(states[key], quota.Instant(h.Monotonic()/time.Microsecond), 1)
		if ok { // passed requests are charged; a wrong refusal is not, so it is counted once
			states[key] = next
		}
		decisions++
		switch {
		case ok && !want.Allowed:
			over++
		case !ok && want.Allowed:
			under++
		}
		for j := range 3 {
			passes(t, h, 0, get("x-key", "flood-"+strconv.Itoa(3*i+j)))
		}
		if i%5 == 0 {
			h.Advance(time.Millisecond)
		}
	}
	t.Logf("of %d decisions about %d keys in a table of 1024 for %d, %d were too lenient and %d too strict (%.3f %%)",
		decisions, active, 180_000+active, over, under, 100*float64(over+under)/float64(decisions))
	if over > 0 {
		t.Errorf("%d decisions were too lenient", over)
	}
	if under > decisions/100 {
		t.Errorf("%d of %d decisions were too strict", under, decisions)
	}
}

// More keys than the table holds are all in use. A key that is crowded out does not start full when
// it comes back: no caller ever gets more than its limit. The price is wrong refusals, few if the
// table is large enough. Which keys crowd one another out is the luck of their hashes, so the share
// that counts is the median of several tables.
func TestMoreKeysThanTheTableHolds(t *testing.T) {
	for _, c := range []struct {
		keys   int     // in use, in a table for 1024
		tables uint64  // that are filled
		wrong  float64 // at most this share of all decisions refuses wrongly
	}{{250, 11, 0}, {500, 31, 0.001}, {1000, 5, 0.05}, {4000, 1, 0.65}} {
		t.Run(strconv.Itoa(c.keys), func(t *testing.T) {
			shares := make([]float64, c.tables)
			for i := range shares {
				shares[i] = wronglyRefused(t, c.keys, uint64(i)+1)
			}
			slices.Sort(shares)
			share := shares[len(shares)/2]
			t.Logf("%d keys in a table of 1024: %.2f %% of the decisions refused wrongly, %.2f to %.2f %%, none was "+
				"too lenient",
				c.keys, 100*share, 100*shares[0], 100*shares[len(shares)-1])
			if share > c.wrong {
				t.Errorf("%.2f %% of the decisions refused wrongly", 100*share)
			}
		})
	}
}

// wronglyRefused returns the share of the decisions that refuse a key which has not used up its
// limit, in a table of its own.
func wronglyRefused(t *testing.T, keys int, seed uint64) float64 {
	t.Helper()
	h := start(t, envoytest.Options{
		Seed: seed, Workers: 1, PluginConfig: alone(setWith(dialectsOff, limits("api", "local", "10/366d", thenDeny))),
	})
	r := rand.New(rand.NewPCG(uint64(keys), 2))
	passed := make([]int, keys)
	wrong, decisions := 0, 20*keys
	for range decisions {
		key := r.IntN(keys)
		if ok, _ := passes(t, h, 0, get("x-key", strconv.Itoa(key))); ok {
			passed[key]++
		} else if passed[key] < 10 {
			wrong++
		}
	}
	for key, n := range passed {
		if n > 10 {
			t.Errorf("table %d: key %d got %d of 10", seed, key, n)
		}
	}
	return float64(wrong) / float64(decisions)
}

// A flood of keys of a leased policy: every one asks the control plane, and nothing grows.
func TestFloodOfLeasedKeys(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, set: setOf(limits("api", "leased", "10/1m", thenDeny))})
	h := w.nodes[0]
	var memory uint64
	keys := 0
	for i := range 40_000 {
		w.request(0, 0, get("x-key", strconv.Itoa(i)))
		if i%8 == 7 {
			w.advance(quantum)
		}
		if i == 20_000 {
			memory, keys = h.MemoryBytes(0), len(h.SharedKeys())
			clear(w.plane.Ledgers)
			w.plane.granted = nil
		}
	}
	w.advance(100 * quantum)
	if len(w.waiting) > 0 {
		t.Errorf("%d requests wait", len(w.waiting))
	}
	if m, k := h.MemoryBytes(0), len(h.SharedKeys()); m != memory || k != keys {
		t.Errorf("memory went from %d to %d bytes, the shared keys from %d to %d", memory, m, keys, k)
	}
	slots := 0
	for _, key := range h.SharedKeys() {
		if len(key) == 8 && key[4] == 's' {
			slots++
		}
	}
	t.Logf("%d bytes, %d shared keys, %d of them slots; %d calls", memory, keys, slots, w.plane.requests)
	if slots != 128 {
		t.Errorf("%d slots, want 1024 keys by 8", slots)
	}
}
