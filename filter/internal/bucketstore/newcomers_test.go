package bucketstore_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/sharedtest"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// A flood of keys that nobody uses twice, five and a half times as many as the table has places,
// with a limit of 5 an hour; newcomers come when it is over.
const (
	floodPlaces = 4096
	floodKeys   = floodPlaces * 11 / 2
	floodTime   = 35 * quota.Second
	newcomers   = 1000
	perHour     = 5
)

// spendOne takes one token of a bucket of 5 an hour.
type spendOne func(st *bucketstore.Store, k match.Key, now quota.Instant) bool

func bucketOfFive(t *testing.T) spendOne {
	t.Helper()
	p, err := quota.NewParams(perHour, quota.Hour, perHour)
	if err != nil {
		t.Fatal(err)
	}
	return func(st *bucketstore.Store, k match.Key, now quota.Instant) (ok bool) {
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
	return func(st *bucketstore.Store, k match.Key, now quota.Instant) bool {
		ok, err := takeWindow(st, w.At(binary.LittleEndian.Uint64(k[8:])), k, now, 1)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
}

// flood returns how many of the flood's requests and of the newcomers' first requests were refused,
// and how many of its five each newcomer got on average. The newcomers come so long after the
// flood.
func flood(spend spendOne, after quota.Span) (refused, turnedAway int, got float64) {
	st := bucketstore.New(&sharedtest.Data{}, space, floodPlaces)
	random := rand.New(rand.NewPCG(1, 2))
	fresh := func() (k match.Key) {
		binary.LittleEndian.PutUint64(k[:], random.Uint64())
		binary.LittleEndian.PutUint64(k[8:], random.Uint64())
		return k
	}
	const start = quota.Instant(1 << 48)
	for i := range quota.Instant(floodKeys) {
		if !spend(st, fresh(), start+i*quota.Instant(floodTime)/floodKeys) {
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

// The page where users choose an algorithm says what a flood does to newcomers.
func TestThePageSaysWhatAFloodDoesToNewcomers(t *testing.T) {
	page, err := os.ReadFile("../../../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]spendOne{"token_bucket": bucketOfFive(t)}
	for _, a := range algorithms {
		kinds[a.String()] = windowOfFive(t, a)
	}
	for name, spend := range kinds {
		refused, away, got := flood(spend, 0)
		_, hour, _ := flood(spend, quota.Hour)
		_, hours, _ := flood(spend, 2*quota.Hour)
		want := fmt.Sprintf("| `%s` | %d %% | %.1f of 5 | %d %% | %d %% | %d %% |", name, refused*100/floodKeys, got,
			away*100/newcomers, hour*100/newcomers, hours*100/newcomers)
		if !strings.Contains(string(page), want) {
			t.Errorf("docs/policies.md should have the row\n%s", want)
		}
	}
}
