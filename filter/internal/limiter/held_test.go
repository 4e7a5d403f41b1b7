package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/limiter"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// crew is some workers of one node at one busy bucket, and the bucket as it is if each request is charged when it comes.
type crew struct {
	*node
	workers []*limiter.Limiter
	params  quota.Params
	exact   quota.State
	rnd     *rand.Rand

	// Of the storm: whose requests they are, how far apart at most, and how dear.
	worker, apart, dear int
}

func newCrew(t *testing.T, seed uint64, workers int) *crew {
	c := &crew{rnd: rand.New(rand.NewPCG(seed, 0))}
	burst, perSecond := 256<<c.rnd.IntN(9)+c.rnd.IntN(300), 1+c.rnd.IntN(1<<(2+2*c.rnd.IntN(9)))
	c.node = newNode(t, false, fmt.Sprintf(`{"name": "p", "partition": [], "mode": "local", "limit": {"quota": %d, "window": "1s", "burst": %d},
		"cost": {"header": "x-cost", "max": 20, "invalid": 1}}`, perSecond, burst))
	c.workers = append(c.workers, c.limiter)
	for len(c.workers) < workers {
		c.workers = append(c.workers, limiter.New(bucketstore.New(c.data, [4]byte{}, 1024), nil))
	}
	var err error
	if c.params, err = quota.NewParams(int64(perSecond), quota.Second, int64(burst)); err != nil {
		t.Fatal(err)
	}
	return c
}

// request is one of a storm's. Storms change often, with pauses as long as lots last and longer.
func (c *crew) request() (*limiter.Request, limiter.Status, int64) {
	if c.apart == 0 || c.rnd.IntN(30) == 0 {
		c.worker, c.apart, c.dear = c.rnd.IntN(len(c.workers)), [...]int{2, 50, 500}[c.rnd.IntN(3)], [...]int{1, 3, 21}[c.rnd.IntN(3)]
		c.now += quota.Instant(c.rnd.IntN(5)/3*c.rnd.IntN(12)) * quota.Instant(quota.Millisecond)
	}
	c.now += quota.Instant(c.rnd.IntN(c.apart))
	switch c.rnd.IntN(1000) {
	case 0:
		c.now += quota.Instant(c.rnd.IntN(3)) * sec
	case 2: // The same policy set once more: what is held must not outlive the one it was taken by.
		c.rules.Generation++
	}
	cost := int64(1)
	if c.dear > 1 && c.rnd.IntN(c.dear) > 0 {
		cost = int64(c.rnd.IntN(c.dear))
	}
	a := match.Attributes{Method: []byte("GET"), Path: []byte("/"), Host: []byte("h"),
		Headers: []match.Header{{Name: []byte("x-cost"), Value: strconv.AppendInt(nil, cost, 10)}}}
	req := &limiter.Request{Stream: 1}
	return req, c.workers[c.worker].Begin(req, c.rules, &a, c.now), cost
}

// A worker alone decides, and tells its clients, as if each request went to the bucket, though hardly one does; only when the bucket is
// full they may be told as it was up to 20 ms before.
func TestAWorkerAloneIsExact(t *testing.T) {
	reads, requests := 0, 0
	for seed := range uint64(200) {
		c := newCrew(t, seed, 1)
		c.data.Before = func(op string, _ []byte) {
			if op == "get" {
				reads++
			}
		}
		var old told
		for i := range 2000 {
			req, status, cost := c.request()
			next, want := c.params.Take(c.exact, c.now, cost)
			c.exact = next
			hit := &req.Hits[0]
			remaining := c.params.Remaining(next)
			if !want.Allowed {
				remaining = 0
			}
			if (status == limiter.Allowed) != want.Allowed || hit.Remaining != remaining || !old.may(c.now, hit.Reset, c.params.ResetAfter(next, c.now)) ||
				!want.Allowed && hit.Retry != want.RetryAfter {
				t.Fatalf("seed %d, request %d of cost %d: %v, %d remaining, full in %d µs, retry in %d; want %+v, %d, %d",
					seed, i, cost, status, hit.Remaining, hit.Reset, hit.Retry, want, remaining, c.params.ResetAfter(next, c.now))
			}
			requests++
		}
	}
	t.Logf("%d requests, %d went to the shared data", requests, reads)
	if reads*2 > requests {
		t.Errorf("%d of %d requests went to the shared data", reads, requests)
	}
}

// told is what clients could have been told of when a bucket is full, and since when.
type told []struct{ since, full quota.Instant }

// may says whether a client may be told that the bucket is full after reset where it really is after exact.
func (o *told) may(now quota.Instant, reset, exact quota.Span) bool {
	*o = append(*o, struct{ since, full quota.Instant }{now, now + quota.Instant(exact)})
	for len(*o) > 1 && (*o)[1].since <= now-20*quota.Instant(quota.Millisecond) {
		*o = (*o)[1:]
	}
	return slices.ContainsFunc(*o, func(t struct{ since, full quota.Instant }) bool { return reset == quota.Span(max(t.full-now, 0)) })
}

// Several workers never contradict each other on when the bucket will be full, and never let through more than the one bucket holds: what
// they admit fits into it, request by request. And they let through nearly all that one who sees every request would.
func TestWorkersTogetherStayInsideTheBucket(t *testing.T) {
	var admitted, most int64
	for seed := range uint64(400) {
		c := newCrew(t, seed, 2+int(seed%3))
		var perfect quota.State
		var full quota.Instant
		for i := range 3000 {
			req, status, cost := c.request()
			if told := c.now + quota.Instant(req.Hits[0].Reset); told < full && full > c.now {
				t.Fatalf("seed %d, request %d of cost %d: worker %d says that the bucket is full at %d, after %d", seed, i, cost, c.worker, told, full)
			} else {
				full = told
			}
			var possible, greedy quota.Result
			if perfect, greedy = c.params.Take(perfect, c.now, cost); greedy.Allowed {
				most += cost
			}
			if status != limiter.Allowed {
				continue
			}
			admitted += cost
			if c.exact, possible = c.params.Take(c.exact, c.now, cost); !possible.Allowed {
				t.Fatalf("seed %d, request %d of cost %d: worker %d admits what a bucket of %+v has not got", seed, i, cost, c.worker, c.params)
			}
		}
	}
	t.Logf("admitted %d of %d tokens (%.2f %%)", admitted, most, 100*float64(admitted)/float64(most))
	if admitted < most*98/100 {
		t.Errorf("admitted %d, less than 98 %% of %d tokens", admitted, most)
	}
}
