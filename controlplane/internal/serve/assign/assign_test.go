package assign_test

import (
	"fmt"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/controlplane/internal/serve/assign"
	"github.com/weir-proxy/weir/shared/quota"
)

// An assigned bucket lets through at most the tokens that were leased for it, in all the time for
// which they are leased, and hardly fewer. Its interval is whole seconds, as Envoy counts.
func TestABucketIsWorthItsLease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, assign.MaxTokens).Draw(t, "tokens")
		if rapid.Bool().Draw(t, "few") {
			n = n%1000 + 1
		}
		ttl := quota.Span(rapid.Int64Range(1, int64(assign.MaxTTL/quota.Second)).Draw(t, "seconds")) * quota.Second
		b := assign.Fill(n, ttl)
		earned := big.NewRat(int64(b.PerFill)*int64(assign.Lease(ttl)/quota.Millisecond),
			int64(b.Interval/quota.Millisecond))
		most := new(big.Rat).Add(earned, big.NewRat(int64(b.Max), 1))
		if most.Cmp(big.NewRat(n+1, 1)) >= 0 {
			t.Errorf("%+v lets through %s, of %d leased", b, most.FloatString(6), n)
		}
		if b.Max < 1 || b.PerFill < 1 || b.Interval < quota.Second || b.Interval%quota.Second != 0 {
			t.Errorf("Envoy takes no bucket like %+v", b)
		}
		if int64(b.Max) < n-n/100 {
			t.Errorf("%+v starts with too little of %d", b, n)
		}
	})
}

func TestTheLeaseCoversTheLifeAndTheWay(t *testing.T) {
	for _, ttl := range []quota.Span{quota.Second, assign.MaxTTL} {
		slow := ttl + ttl/1001 // the ttl on a clock that is slow by 1 in 1000
		if lease := assign.Lease(ttl); lease < assign.Late+slow {
			t.Errorf("tokens of an assignment of %d µs are leased for %d", ttl, lease)
		}
	}
}

// Split gives all tokens to the filters that want some. No filter gets more than another filter
// that lacks some.
func TestSplitIsFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wants := rapid.SliceOfN(rapid.Int64Range(0, 100), 1, 10).Draw(t, "wants")
		n := rapid.Int64Range(0, 600).Draw(t, "tokens")
		shares := assign.Split(n, wants, rapid.IntRange(0, 20).Draw(t, "first"))
		var given, wanted int64
		for i := range wants {
			given, wanted = given+shares[i], wanted+wants[i]
			if shares[i] < 0 || shares[i] > wants[i] {
				t.Errorf("%v of %d for %v", shares, n, wants)
			}
			for j := range wants {
				if shares[i] < wants[i] && shares[j] > shares[i]+1 {
					t.Errorf("%v of %d for %v: %d has too much beside %d", shares, n, wants, j, i)
				}
			}
		}
		if given != min(n, wanted) {
			t.Errorf("%v of %d for %v", shares, n, wants)
		}
	})
}

func params(t *testing.T, limit int64, window quota.Span, burst int64) quota.Params {
	t.Helper()
	p, err := quota.NewParams(limit, window, burst)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The tightest of several limits counts, each in requests.
func TestTheTightestFiguresCount(t *testing.T) {
	f := assign.Figures{}.With(params(t, 10, quota.Second, 20), 1, 20).With(params(t, 6000, quota.Hour, 6000), 2, 100)
	if got := fmt.Sprintf("%d %d %.3f %d", f.Burst, f.Level, f.Rate, f.Window/quota.Second); got != "20 20 0.833 2" {
		t.Error(got)
	}
}
