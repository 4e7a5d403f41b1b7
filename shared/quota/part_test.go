package quota_test

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/quota"
)

// A part is never faster than its share of the whole, is slower by less than one part in
// MaxUnits/burst, and can be computed with exactly; parts of one bucket add up to the bucket at
// most.
func TestPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := quota.NewParams(rapid.Int64Range(1, 1<<52).Draw(t, "quota"),
			quota.Span(rapid.Int64Range(1, int64(quota.MaxWindow)).Draw(t, "window")), rapid.Int64Range(1,
				1<<52).Draw(t, "burst"))
		if err != nil {
			return
		}
		num := rapid.Int64Range(10, 1000).Draw(t, "num")
		part := p.Part(num, 1000, max(1, p.Burst*rapid.Int64Range(1, 1000).Draw(t, "weight")/1000))
		if part.Num < 1 || part.Den < 1 || part.Num > quota.MaxUnits || part.Burst > quota.MaxUnits/part.Den {
			t.Fatalf("%+v of %+v is not computed with exactly", part, p)
		}
		whole := new(big.Rat).Mul(big.NewRat(p.Num, p.Den), big.NewRat(num, 1000))
		rate := big.NewRat(part.Num, part.Den)
		if rate.Cmp(whole) > 0 {
			t.Fatalf("%+v is faster than %d/1000 of %+v", part, num, p)
		}
		lost := new(big.Rat).Quo(new(big.Rat).Sub(whole, rate), whole)
		if lost.Cmp(big.NewRat(1, 1_000_000)) > 0 && big.NewRat(part.Num, 1).Cmp(big.NewRat(1_000_000, 1)) > 0 {
			t.Fatalf("%+v loses %s of %d/1000 of %+v", part, lost.FloatString(12), num, p)
		}
	})
}

func TestPartOfEverydayLimits(t *testing.T) {
	for _, c := range []struct {
		quota  int64
		window quota.Span
		num    int64
		burst  int64
		want   quota.Params
	}{
		{100, quota.Minute, 500, 50, quota.Params{Num: 1, Den: 1_200_000, Burst: 50}},
		{5, quota.Minute, 300, 1, quota.Params{Num: 1, Den: 40_000_000, Burst: 1}},
		{1000, quota.Second, 1000, 1000, quota.Params{Num: 1, Den: 1000, Burst: 1000}},
	} {
		p, err := quota.NewParams(c.quota, c.window, c.quota)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Part(c.num, 1000, c.burst); got != c.want {
			t.Errorf("%d/1000 of %d in %d µs: %+v, want %+v", c.num, c.quota, c.window, got, c.want)
		}
	}
}
