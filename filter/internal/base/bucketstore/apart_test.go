package bucketstore_test

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// kinds are the kinds of buckets that can be apart.
var kinds = map[string]bucketstore.Kind{"tokens": bucketstore.Local, "windows": bucketstore.Window}

// takeApart takes a token of a bucket of n a minute, as a plugin without a control plane does. It
// returns whether the token was there, and the tokens left.
func takeApart(
	t *testing.T, st *bucketstore.Store, kind bucketstore.Kind, n int64, k keyhash.Key, now quota.Instant,
) (ok bool, left int64) {
	t.Helper()
	p, err := quota.NewParams(n, quota.Minute, n)
	if err != nil {
		t.Fatal(err)
	}
	w, err := quota.NewWindows(quota.SlidingLog, n, quota.Minute, 1)
	if err != nil {
		t.Fatal(err)
	}
	takeToken := func(e *bucketstore.Entry) bool {
		converted := !e.New && e.Params != p
		if converted {
			e.State = e.Params.Convert(e.State, now, p, 0)
		}
		var r quota.Result
		e.State, r = p.Take(e.State, now, 1)
		e.Params, ok, left = p, r.Allowed, p.Remaining(e.State)
		return ok || converted
	}
	takeFromWindow := func(e *bucketstore.Entry) bool {
		converted := !e.New && e.Windows != w
		if converted {
			e.Windows.Convert(&e.History, now, w)
		}
		ok = w.Take(&e.History, now, 1).Allowed
		e.Windows, left = w, w.Remaining(&e.History)
		return ok || converted
	}
	st.Figures = bucketstore.Figures{Params: p}
	apply := change(takeToken)
	if kind == bucketstore.Window {
		st.Figures = bucketstore.Figures{Windows: w}
		apply = takeFromWindow
	}
	if err := st.Update(kind, k, now, apply); err != nil {
		t.Fatal(err)
	}
	return ok, left
}

// A bucket whose place in the new table has an older limit's bucket of the same key is found at its
// former place. It does not start anew from the older limit's bucket.
func TestAnotherSizeKeepsBucketsApart(t *testing.T) {
	for name, kind := range kinds {
		// A step changes the number of keys, or is a request to the older or the newer plugin.
		for _, steps := range []string{
			"65536 older", "65536 newer 2048", "65536 newer older 2048 older", "65536 older 512",
			"65536 newer 512 older",
		} {
			t.Run(name+", "+steps, func(t *testing.T) {
				data, now := &shareddatatest.Data{}, quota.Instant(quota.Second)
				k := random(rand.New(rand.NewPCG(1, 2)))
				var stores []*bucketstore.Store
				begin := func() {
					now += quota.Instant(quota.Millisecond)
					st := bucketstore.New(data, space, 2048, now)
					st.Apart(now)
					stores = append(stores, st)
				}
				use := func(plugin, times int) (passed int) {
					for range times {
						now += quota.Instant(quota.Millisecond)
						if ok, _ := takeApart(t, stores[plugin], kind, []int64{200, 6}[plugin], k, now); ok {
							passed++
						}
					}
					return passed
				}
				begin()
				use(0, 4)
				begin()
				if n := use(1, 10); n != 2 {
					t.Fatalf("%d passed of 6, of which 4 were used", n)
				}
				for _, step := range strings.Fields(steps) {
					switch step {
					case "older":
						use(0, 1)
					case "newer":
						use(1, 1)
					default:
						keys, _ := strconv.Atoi(step)
						bucketstore.New(data, space, keys, now)
						now += quota.Instant(300 * quota.Millisecond) // Updates follow by themselves.
					}
				}
				if n := use(1, 10); n != 0 {
					t.Errorf("%d more passed after the table got another size", n)
				}
			})
		}
	}
}

// Plugins with limits of their own decide the same in tables whose size changes as in tables of one
// size. The limits come and go, and plugins of older sets stay in use.
func TestAnotherSizeChangesNoDecision(t *testing.T) {
	type plugin struct {
		n               int64
		since           quota.Instant
		resized, steady *bucketstore.Store
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(300) {
				rng := rand.New(rand.NewPCG(seed, 1))
				resized, steady := &shareddatatest.Data{}, &shareddatatest.Data{}
				keys := []keyhash.Key{random(rng), random(rng)}
				now := quota.Instant(quota.Second)
				var plugins []plugin
				for step := range 120 {
					now += 1 + quota.Instant(rng.Int64N(40))*quota.Instant(quota.Millisecond)
					if step%15 == 0 {
						p := plugin{n: []int64{5, 9, 200}[rng.IntN(3)], since: now}
						if len(plugins) > 0 && rng.IntN(3) == 0 { // The policy set stays, the size changes.
							p = plugins[len(plugins)-1]
						}
						p.resized = bucketstore.New(resized, space, []int{1024, 8192, 65536}[rng.IntN(3)], now)
						p.steady = bucketstore.New(steady, space, 8192, now)
						p.resized.Apart(p.since)
						p.steady.Apart(p.since)
						plugins = append(plugins, p)
					}
					for _, p := range plugins {
						p.resized.Tick(now)
					}
					now++
					// The last plugin is used most.
					p, k := plugins[len(plugins)-1], keys[rng.IntN(2)]
					if rng.IntN(3) == 0 {
						p = plugins[rng.IntN(len(plugins))]
					}
					ok, left := takeApart(t, p.resized, kind, p.n, k, now)
					wantOK, wantLeft := takeApart(t, p.steady, kind, p.n, k, now)
					if ok != wantOK || left != wantLeft {
						t.Fatalf("seed %d, step %d, %d a minute: passed %v, %d left; with one size %v, %d left", seed,
							step, p.n, ok, left, wantOK, wantLeft)
					}
				}
			}
		})
	}
}
