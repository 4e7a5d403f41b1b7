package adaptive_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/quota"
)

var config = adaptive.Config{Min: 20, Max: 2000, Percentile: 90}

// seen is an upstream on which much has happened.
func seen(seed uint64) adaptive.Upstream {
	rng := rand.New(rand.NewPCG(seed, 1))
	u, now := adaptive.Upstream{}, quota.Instant(5)
	u.Begin(config, now)
	for range 30 + rng.IntN(100) {
		now += quota.Instant(10+rng.IntN(90)) * quota.Instant(quota.Millisecond)
		for range rng.IntN(200) {
			u.Window.Latency.Add(quota.Span(rng.ExpFloat64() * 20_000))
			u.Window.Held += int64(rng.IntN(100_000))
			u.Load.Arrived[rng.IntN(4)]++
		}
		u.Window.Refused, u.Load.Refused = u.Window.Refused+3, u.Load.Refused+30
		u.Reports.Add(rng.Float64())
		u.Advance(config, 4, now)
	}
	return u
}

// The encoding is read back whole, and always has the same number of bytes.
func TestEncoding(t *testing.T) {
	for seed := range uint64(200) {
		u, back := seen(seed), adaptive.Upstream{}
		b := u.Append([]byte("before"))[len("before"):]
		if len(b) != adaptive.Size || !back.Decode(b) || back != u {
			t.Fatalf("seed %d: %d bytes\n%+v\n%+v", seed, len(b), u, back)
		}
		b[0]++
		if back.Decode(b) || back.Decode(b[1:]) {
			t.Fatal("another version, or length, was read")
		}
	}
}

// For any bytes, the limit stays within its bounds, and the result is written as it was read.
func FuzzDecode(f *testing.F) {
	for seed := range uint64(8) {
		u := seen(seed)
		f.Add(u.Append(nil))
	}
	f.Add([]byte{1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var u adaptive.Upstream
		if !u.Decode(b) {
			return
		}
		if !bytes.Equal(u.Append(nil), b) {
			t.Fatal("is written otherwise than it was read")
		}
		now := max(u.Began, u.LoadBegan)%(1<<40) + quota.Instant(quota.Hour)
		for range 3 {
			u.Rest(now)
			u.Advance(config, 4, now)
			if v := u.Limit.Value; !(v >= 20 && v <= 2000) || !(u.Shed.Share >= 0) {
				t.Fatalf("limit %v, %v shed", v, u.Shed.Share)
			}
			now += quota.Instant(quota.Second)
			for range 100 {
				u.Window.Latency.Add(20_000)
			}
		}
	})
}

// An upstream of which nothing came for a while sheds a class less for each second, and one whose
// reports say that it is busy sheds more.
func TestRestAndReports(t *testing.T) {
	u := adaptive.Upstream{}
	u.Begin(config, 0)
	at := quota.Instant(0)
	for range 40 {
		at += quota.Instant(adaptive.ShedEvery)
		u.Load.Arrived = [adaptive.MaxClasses]uint32{10, 10, 10, 10}
		u.Reports.Add(1)
		u.Advance(config, 4, at)
	}
	busy := u.Shed.Share
	u.Rest(at + quota.Instant(quota.Second)/2)
	if u.Shed.Share != busy || busy < 2 || busy > 3 {
		t.Errorf("%v classes are shed, then %v", busy, u.Shed.Share)
	}
	if u.Rest(at + quota.Instant(2*quota.Second)); u.Shed.Share != busy-2 {
		t.Errorf("%v classes are shed after 2 s", u.Shed.Share)
	}
	u.Rest(at + quota.Instant(quota.Hour))
	if u.Shed.Share != 0 {
		t.Errorf("%v classes are shed after an hour", u.Shed.Share)
	}
}

// A limit that changes to another percentile keeps its value, and learns its latency anew.
func TestAnotherPercentile(t *testing.T) {
	u := seen(3)
	value, c := u.Limit.Value, config
	c.Percentile = 50
	u.Advance(c, 4, u.Began)
	if u.Limit.Value != value || u.Limit.Base != 0 {
		t.Errorf("limit %v, base %v; it was %v", u.Limit.Value, u.Limit.Base, value)
	}
}
