//go:build !race

package bucketstore_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// A flood of keys that are used once each, five and a half times the table's places, with a limit
// of 5 an hour; newcomers come when it is over. A larger flood has four times its keys.
const (
	floodPlaces = 4096
	floodKeys   = floodPlaces * 11 / 2
	largerFlood = 4 * floodKeys
	floodTime   = 35 * quota.Second
	newcomers   = 1000
	perHour     = 5
)

// spendOne takes one token of a bucket of 5 an hour.
type spendOne func(st *bucketstore.Store, k keyhash.Key, now quota.Instant) bool

func bucketOfFive(t *testing.T) spendOne {
	t.Helper()
	p, err := quota.NewParams(perHour, quota.Hour, perHour)
	if err != nil {
		t.Fatal(err)
	}
	return func(st *bucketstore.Store, k keyhash.Key, now quota.Instant) (ok bool) {
		err := st.Update(bucketstore.Local, k, now, change(func(e *bucketstore.Entry) bool {
			if e.New && e.Debtor > now {
				debt := min(int64(e.Debtor-now)*p.Num, p.Burst*p.Den)
				e.State = quota.State{Debt: debt, Last: now}
			}
			var r quota.Result
			e.Params = p
			e.State, r = p.Take(e.State, now, 1)
			ok = r.Allowed
			return ok
		}))
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
}

func windowOfFive(t *testing.T, a quota.Algorithm) spendOne {
	t.Helper()
	w, err := quota.NewWindows(a, perHour, quota.Hour, quota.DefaultSubwindows)
	if err != nil {
		t.Fatal(err)
	}
	return func(st *bucketstore.Store, k keyhash.Key, now quota.Instant) bool {
		ok, err := takeWindow(st, w.At(binary.LittleEndian.Uint64(k[8:])), k, now, 1)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
}

// flood returns the number of refused requests of the flood and of the newcomers' first requests,
// and the average number of its five tokens that each newcomer got. The newcomers come after a
// pause after a flood of keys.
func flood(spend spendOne, keys quota.Instant, after quota.Span) (refused, turnedAway int, got float64) {
	st := bucketstore.New(&shareddatatest.Data{}, space, floodPlaces, 0)
	random := rand.New(rand.NewPCG(1, 2))
	fresh := func() (k keyhash.Key) {
		binary.LittleEndian.PutUint64(k[:], random.Uint64())
		binary.LittleEndian.PutUint64(k[8:], random.Uint64())
		return k
	}
	const start = quota.Instant(1 << 48)
	for i := range keys {
		if !spend(st, fresh(), start+i*quota.Instant(floodTime)/keys) {
			refused++
		}
	}
	passed := 0
	for range newcomers {
		k, first := fresh(), passed
		for range perHour {
			if spend(st, k, start+quota.Instant(floodTime+after)) {
				passed++
			}
		}
		if passed == first {
			turnedAway++
		}
	}
	return refused, turnedAway, float64(passed) / newcomers
}

// A flood of keys that took one token each leaves newcomers to every algorithm the most of theirs,
// and callers who are in the table and have used up theirs do not come back with more.
func TestAFloodShutsNoNewcomerOut(t *testing.T) {
	for _, a := range algorithms {
		refused, away, got := flood(windowOfFive(t, a), floodKeys, 0)
		if refused > floodKeys/100 || away > newcomers/100 || got < 3 {
			t.Errorf("%v: %d of %d requests of the flood and %d of %d newcomers were refused; these got %.1f of 5",
				a, refused, floodKeys, away, newcomers, got)
		}
	}
}

// In a cell that says nothing of how much is owed, everything may be.
func TestACellOfAnUnknownDebtOwesEverything(t *testing.T) {
	for _, a := range algorithms {
		data := &shareddatatest.Data{}
		st := bucketstore.New(data, space, 8, 0)
		w := windowsOf(t, a)
		slot := make([]byte, 8+16*8)
		copy(slot, "WRW2")
		for at := 8; at < len(slot); at += 8 {
			binary.LittleEndian.PutUint64(slot[at:], uint64(3*quota.Second))
		}
		data.Put(append(space[:], 'w', 0, 0, 0), slot)
		if ok, err := takeWindow(st, w, key(0, 1), quota.Instant(quota.Second), 1); ok || err != nil {
			t.Errorf("%v: a key that may owe everything was admitted (%v)", a, err)
		}
	}
}

// A caller that owes a number of tokens owes no less after the cell has rounded it, and hardly
// more.
func TestACellKeepsHowMuchIsOwed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		large := rapid.Int64Range(1, int64(1)<<rapid.IntRange(1, 36).Draw(t, "bits")).Draw(t, "owed")
		w, err := quota.NewWindows(quota.FixedWindow, large, quota.Hour, 1)
		if err != nil {
			t.Fatal(err)
		}
		st := bucketstore.New(&shareddatatest.Data{}, space, 8, 0)
		ofOneCell := func(n byte) keyhash.Key { return keyhash.Key{9: n} }
		for n := range byte(9) { // One entry has to go for the ninth.
			if ok, err := takeWindow(st, w, ofOneCell(n), quota.Instant(n), large); !ok || err != nil {
				t.Fatalf("%v, %v", ok, err)
			}
		}
		var e bucketstore.Entry
		look := change(func(found *bucketstore.Entry) bool { e = *found; return false })
		if err := st.Update(bucketstore.Window, ofOneCell(9), 9, look); err != nil {
			t.Fatal(err)
		}
		if !e.New || e.Owes < large || e.Owes > large+large/64 {
			t.Fatalf("who owes %d owes %d after a flood", large, e.Owes)
		}
	})
}

// The page where users choose an algorithm describes the effect of a flood on newcomers.
func TestThePageHasTheEffectOfAFloodOnNewcomers(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/choose/algorithms.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]spendOne{"token_bucket": bucketOfFive(t)}
	for _, a := range algorithms {
		kinds[a.String()] = windowOfFive(t, a)
	}
	for name, spend := range kinds {
		refused, away, got := flood(spend, floodKeys, 0)
		refusedMore, larger, _ := flood(spend, largerFlood, 0)
		_, hour, _ := flood(spend, largerFlood, quota.Hour)
		_, hours, _ := flood(spend, largerFlood, 2*quota.Hour)
		want := fmt.Sprintf("| `%s` | %d %% | %d %% | %.1f of 5 | %d %% | %d %% | %d %% | %d %% |", name,
			refused*100/floodKeys, away*100/newcomers, got,
			refusedMore*100/largerFlood, larger*100/newcomers, hour*100/newcomers, hours*100/newcomers)
		if !strings.Contains(string(page), want) {
			t.Errorf("docs/choose/algorithms.md should have the row\n%s", want)
		}
	}
}
