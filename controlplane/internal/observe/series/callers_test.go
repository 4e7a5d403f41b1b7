package series_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// perMinute is a policy with two limits, the first by the minute.
var perMinute = &policy.Policy{Name: "api", Limits: []policy.Limit{
	{Quota: 100, Window: quota.Minute}, {Quota: 10, Window: quota.Second},
}}

// oneSet is a store of one policy set, with that policy.
type oneSet struct{ policies.Store }

func (oneSet) Current(context.Context) (uint64, error) { return 1, nil }

func (oneSet) Load(context.Context, uint64) (policies.Version, error) {
	return policies.Version{Number: 1, Format: policydoc.YAML, Document: []byte(`
version: weir/v1
policies:
  - {name: api, partition: [client_ip], limit: [{quota: 100, window: 1m}, {quota: 10, window: 1s}]}
`)}, nil
}

// bucketOf is the bucket of a caller, as hashes are: evenly spread.
func bucketOf(random *rand.Rand) (key keyhash.Key) {
	binary.LittleEndian.PutUint64(key[:], random.Uint64())
	return key
}

// use counts the use of a caller.
func use(s *series.Service, bucket keyhash.Key, tokens int64) {
	s.Used(perMinute, int64(quota.Minute), bucket, tokens)
}

func near(t *testing.T, what string, got, want, part float64) {
	t.Helper()
	if math.Abs(got-want) > part*want {
		t.Errorf("%s is %v, want %v give or take %v %%", what, got, want, part*100)
	}
}

// 990 callers of 10 a minute and 10 of 1000, each of which both replicas hear a half.
func TestCallersAreAddedUp(t *testing.T) {
	w := newWorld(t)
	one, other := w.replica("one"), w.replica("other")
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 1000 {
		bucket, used := bucketOf(random), int64(50)
		if n >= 990 {
			used = 5000
		}
		use(one, bucket, used/2)
		use(other, bucket, used/2)
		one.Used(perMinute, int64(quota.Second), bucket, 1e6) // It is of the other limit.
	}
	if d := one.Distribution("api", time.Minute, 0, []int64{5}); d.Suggestion != nil || len(d.Limits) != 1 ||
		d.Callers != 0 {
		t.Errorf("before the span is over: %+v", d)
	}
	w.pass(5*time.Minute + 20*time.Second)
	for _, s := range w.all {
		d := s.Distribution("api", time.Minute, 0, []int64{100, 2000, 5})
		start := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
		if d.Callers != 1000 || d.Sampled != 1000 || !d.Complete || !d.Since.Equal(start) ||
			!d.Until.Equal(start.Add(5*time.Minute)) {
			t.Errorf("%+v", d)
		}
		for i, want := range []float64{10, 10, 10, 1000, 1000} {
			near(t, fmt.Sprint("quantile ", d.Quantiles[i].Q), d.Quantiles[i].Rate, want, series.Accuracy)
		}
		if c := d.Limits[0]; c.Limit != 100 || c.Above != 10 || c.Share != 0.01 {
			t.Errorf("100 a minute catches %+v", c)
		}
		near(t, "what 100 a minute refuses", d.Limits[0].Refused, 9000.0/19900, 2*series.Accuracy)
		if c := d.Limits[1]; c != (series.Caught{Limit: 2000}) {
			t.Errorf("2000 a minute catches %+v", c)
		}
		if c := d.Limits[2]; c.Above != 1000 || c.Share != 1 {
			t.Errorf("5 a minute catches %+v", c)
		}
		if l := d.Suggestion.Limit; l != 1200 && l != 1300 || d.Suggestion.Above != 0 {
			t.Errorf("suggested is %+v", d.Suggestion)
		}
		// By the hour the same callers use sixty times as much.
		hour := s.Distribution("api", time.Hour, 0, nil)
		near(t, "the median of an hour", hour.Quantiles[0].Rate, 600, series.Accuracy)
	}
	// A second span makes means, and after an hour nothing is left.
	use(one, bucketOf(random), 50)
	w.pass(5 * time.Minute)
	if d := other.Distribution("api", time.Minute, 0, nil); d.Callers != 501 || d.Sampled != 1001 { // 500.5
		t.Errorf("after two spans: %+v", d)
	}
	w.pass(65 * time.Minute)
	if d := one.Distribution("api", time.Minute, 0, nil); d.Suggestion != nil || d.Sampled != 0 {
		t.Errorf("after an hour: %+v", d)
	}
}

// Refused tokens count as demand as well.
func TestRefusedCallersCount(t *testing.T) {
	w := newWorld(t)
	s := w.replica("one")
	set, err := policies.New(policies.Config{Store: oneSet{},
		Now: func() time.Time { return w.now }}).At(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	bucket := bucketOf(rand.New(rand.NewPCG(3, 4)))
	use(s, bucket, 100)
	for limit, count := range []int64{50, 1000, 7} { // There is no third limit.
		s.Heard(set, &wire.Decisions{Node: []byte("n"), Refusals: []wire.Refusal{
			{CallerCount: wire.CallerCount{Bucket: bucket, Count: count + 5, Over: 5}, Limit: uint32(limit), Cost: 2},
		}})
	}
	w.pass(5*time.Minute + 20*time.Second)
	near(t, "the rate", s.Distribution("api", time.Minute, 0, nil).Quantiles[4].Rate, 100+(50*2)/5, series.Accuracy)
}

// A sample of many callers is of all alike, and bounded.
func TestManyCallersAreSampled(t *testing.T) {
	const seed = 5
	t.Logf("seed %d", seed)
	w := newWorld(t)
	one, other := w.replica("one"), w.replica("other")
	random := rand.New(rand.NewPCG(seed, seed))
	for n := range 50_000 {
		bucket := bucketOf(random)
		use(one, bucket, int64(n%1000+1)*5)
		if n < 5000 { // The other one's sample is less thin.
			use(other, bucket, int64(n%1000+1)*5)
		}
	}
	w.pass(5*time.Minute + 20*time.Second)
	d := other.Distribution("api", time.Minute, 0, []int64{900})
	if d.Sampled > 2048 || d.Sampled < 1024 {
		t.Errorf("%d are sampled", d.Sampled)
	}
	// Four standard deviations of a sample of 1500.
	near(t, "the number of callers", float64(d.Callers), 50_000, 4/math.Sqrt(1500))
	near(t, "the 90th percentile", d.Quantiles[1].Rate, 900, 0.05)
	near(t, "the share above 900", d.Limits[0].Share, 0.1, 4*0.3/math.Sqrt(1500)/0.1+0.1)
}

// A damaged message counts nothing, and does no harm.
func TestDamagedCallers(t *testing.T) {
	w := newWorld(t)
	s := w.replica("one")
	random := rand.New(rand.NewPCG(6, 7))
	for range 20 {
		use(s, bucketOf(random), 300)
	}
	span := series.Callers.At(w.now)
	w.pass(5 * time.Minute)
	whole := w.store.slots[span]["one"]
	w.store.slots[span] = map[string][]byte{"one": whole, "cut": whole[:len(whole)-1],
		"long": append([]byte{0xff}, whole...)}
	w.pass(20 * time.Second)
	if d := s.Distribution("api", time.Minute, 0, nil); d.Callers != 20 || d.Quantiles[4].Rate > 61 {
		t.Errorf("%+v", d)
	}
}
