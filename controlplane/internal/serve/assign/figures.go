package assign

import (
	"math"

	"github.com/weir-proxy/weir/shared/quota"
)

// Figures sum up the limits of a bucket, in requests. Each field is the value of the tightest
// limit.
type Figures struct {
	// Burst is the largest number of requests at once. Level is the number of requests that the
	// limits held after the last grant.
	Burst, Level int64
	// Rate is the number of requests that the limits earn in a second.
	Rate float64
	// Window is the refill time of the limit that refills soonest.
	Window quota.Span
}

// With adds a limit of p. Each request costs the given tokens, and the limit held level tokens.
func (f Figures) With(p quota.Params, cost, level int64) Figures {
	cost = max(cost, 1)
	rate := float64(p.Num) / float64(p.Den) * float64(quota.Second) / float64(cost)
	one := Figures{Burst: p.Burst / cost, Level: level / cost, Rate: rate, Window: p.Window()}
	if f.Window == 0 {
		return one
	}
	return Figures{
		Burst: min(f.Burst, one.Burst), Level: min(f.Level, one.Level),
		Rate: math.Min(f.Rate, one.Rate), Window: min(f.Window, one.Window),
	}
}
