package assign_test

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/assign"
	"github.com/weir-proxy/weir/shared/quota"
)

// The assignments by demand: filters with many requests get tokens for half a second at a time,
// filters with few requests get a few tokens for long.
func TestRounds(t *testing.T) {
	for _, c := range []struct {
		what         string
		limit        int64
		window       quota.Span
		burst, level int64
		demands      []int64 // requests in the last 5 s; -1 for a filter that is new
		want         string  // the TTL in seconds, and the wants
	}{
		{"a busy bucket", 100, quota.Second, 1000, 0, []int64{5000}, "1 [450]"},
		{"as much as the limit allows", 100, quota.Second, 1000, 500, []int64{250}, "1 [43]"},
		{"two busy filters", 100, quota.Second, 1000, 0, []int64{1000, 500}, "1 [90 45]"},
		{"no more than the burst", 100, quota.Second, 100, 0, []int64{5000, 0}, "1 [100 1]"},
		{"a slow limit", 10, quota.Minute, 10, 10, []int64{1}, "30 [3]"},
		{"a quiet caller", 100, quota.Minute, 100, 100, []int64{1}, "30 [12]"},
		{"a quiet caller of a limit that fills", 1000, quota.Second, 10_000, 5000, []int64{1}, "5 [624]"},
		{"two of them", 1000, quota.Second, 10_000, 5000, []int64{1, 1}, "5 [312 312]"},
		{"a quiet caller of an empty limit", 1000, quota.Second, 10_000, 0, []int64{1}, "5 [4]"},
		{"two quiet callers of a full limit", 400, quota.Minute, 400, 400, []int64{1, 1}, "20 [25 25]"},
		{"no caller", 10, quota.Minute, 10, 10, []int64{0}, "30 [1]"},
		{"new", 100, quota.Second, 1000, 1000, []int64{-1}, "1 [90]"},
		{"two new ones", 100, quota.Second, 1000, 1000, []int64{-1, -1}, "1 [45 45]"},
		{"new at an empty bucket", 10, quota.Second, 100, 0, []int64{-1}, "1 [12]"},
	} {
		var p assign.Pool
		var now quota.Instant = 1
		for i, n := range c.demands {
			p.Report(now, uint64(i), 1)
			if n >= 0 {
				p.Report(now+quota.Instant(5*quota.Second), uint64(i), n)
			}
		}
		now += quota.Instant(5 * quota.Second)
		f := assign.Figures{}.With(params(t, c.limit, c.window, c.burst), 1, c.level)
		r, _ := p.Open(now, f, 512)
		if got := fmt.Sprint(int64(r.TTL/quota.Second), r.Wants); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

// A filter that comes between two rounds is assigned at once, and joins the next round of all
// filters.
func TestANewcomerJoins(t *testing.T) {
	f := assign.Figures{}.With(params(t, 100, quota.Second, 1000), 1, 1000)
	var p assign.Pool
	round := func(now quota.Instant, want string) {
		t.Helper()
		if p.Due() > now {
			t.Fatalf("at %d nothing is due", now)
		}
		r, _ := p.Open(now, f, 512)
		if got := fmt.Sprint(r.Filters); got != want {
			t.Errorf("at %d: %s, want %s", now, got, want)
		}
		p.Close(now, r, 1000)
	}
	p.Report(1, 7, 1)
	round(1, "[7]")
	p.Report(200_001, 3, 1)
	round(200_001, "[3]")
	if p.Due() != 500_001 {
		t.Errorf("the next round is at %d", p.Due())
	}
	round(500_001, "[3 7]")
	p.Leave(7)
	round(1_000_001, "[3]")
	p.Leave(3)
	if p.Due() != quota.Forever || p.Size() != 0 {
		t.Error("without filters nothing is due")
	}
}

// A filter that falls silent is forgotten after three reports. One whose callers have gone is to
// forget the bucket.
func TestFiltersAreForgotten(t *testing.T) {
	f := assign.Figures{}.With(params(t, 100, quota.Second, 1000), 1, 1000)
	var p assign.Pool
	p.Report(1, 1, 1)
	p.Report(1, 2, 1)
	var got []string
	for now := quota.Instant(1); now < quota.Instant(quota.Minute); now += quota.Instant(quota.Second) {
		if (now-1)%quota.Instant(5*quota.Second) == 0 {
			p.Report(now, 2, 0)
		}
		r, forgotten := p.Open(now, f, 0)
		for _, gone := range forgotten {
			got = append(got, fmt.Sprintf("%d s: %+v", now/quota.Instant(quota.Second), gone))
		}
		p.Close(now, r, 0)
		if p.Size() == 0 {
			break
		}
	}
	if want := "[16 s: {Filter:1 Silent:true} 32 s: {Filter:2 Silent:false}]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}

// A report has the requests since the last report, whenever that was. A report that comes twice, or
// two reports at once, make no rate by themselves.
func TestDemand(t *testing.T) {
	type report struct {
		seconds float64
		n       int64
		want    float64 // -1 while it is not known
	}
	for _, reports := range [][]report{
		{{0, 1, -1}, {5, 50, 10}, {10, 100, 20}, {15, 0, 10}, {20, 0, 5}},
		{{0, 1, -1}, {0.5, 100, -1}, {5, 400, 100}, {5.001, 400, 100}, {10, 0, 90}},
		{{0, 1, -1}, {1, 1 << 62, -1}, {4, -5, 1 << 38}},
	} {
		var d assign.Demand
		for _, r := range reports {
			d = d.Report(1+quota.Instant(r.seconds*float64(quota.Second)), r.n)
			rate, known := d.Rate()
			if !known {
				rate = -1
			}
			if rate < r.want-0.1 || rate > r.want+0.1 {
				t.Errorf("%+v: %.2f", r, rate)
			}
		}
	}
}
