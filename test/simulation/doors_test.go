package simulation

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// doors spend, at replicas of the control plane, from the buckets that the filters use: for single
// calls, as RLS does, or for some seconds ahead, as RLQS does.
type doors struct {
	*world
	r     *rand.Rand
	known []knownBucket
	met   map[keyhash.Key]bool
	used  int
}

// newDoors chooses a run in which messages are lost, doubled and late, and nothing else goes wrong.
func newDoors(seed uint64) *doors {
	w := choose(seed, nothing)
	w.onlyLate, w.hoarding, w.replicas = true, 0, 1+w.r.IntN(3)
	w.lines, w.callers = make([]line, w.replicas), nil
	w.nodes, w.doors = w.nodes[:1+w.r.IntN(min(3, len(w.nodes)))], w.replicas
	for i := range w.policies {
		s := &w.policies[i]
		s.own, s.algorithm, s.mode = false, "token_bucket", pick(w.r, "optimistic", "optimistic", "leased", "strict")
		s.failure = `[{"share":"forever"}]`
		w.addCallers(i, *s)
	}
	d := &doors{world: w, r: rand.New(rand.NewPCG(seed, 0xd0)), met: map[keyhash.Key]bool{}}
	w.watch = d.meet
	w.start()
	d.call()
	return d
}

// meet notes the buckets of a request that the filter has decided.
func (d *doors) meet(by filtertest.Decision) {
	for _, h := range by.Hits {
		if !d.met[h.Bucket] {
			d.met[h.Bucket] = true
			d.known = append(d.known, knownBucket{h.Bucket, h.Limit})
		}
	}
}

// call calls a door with a cost of 0 or of many tokens, and uses the granted tokens as late as it
// may.
func (d *doors) call() {
	w := d.world
	w.after(quota.Span(d.r.ExpFloat64()*20_000), d.call)
	if len(d.known) == 0 {
		return
	}
	k := d.known[d.r.IntN(len(d.known))]
	limit, ok := w.limitOf(uint64(len(w.sets)), k.limit)
	if !ok {
		return
	}
	burst, span := limit.Params.Burst, quota.Span(lease.Deadline)
	cost := 1 + d.r.Int64N(pick(d.r, 1, burst/4+1, burst))
	it := wire.LeaseItem{Bucket: k.bucket, Limit: k.limit, Waiting: 1, Cost: cost}
	switch d.r.IntN(6) {
	case 0: // It looks.
		it.Waiting, it.Cost = 0, 1
	case 1: // It assigns.
		span = quota.Span(1_250_000 + d.r.Int64N(1_250_000))
		it.Waiting, it.Cost = 1+d.r.Int64N(burst), 1
	}
	if name, known := w.dues.names[k.bucket]; known {
		w.charge(name, it.Waiting*it.Cost)
	}
	reply, err := w.plane.GrantFor(d.r.IntN(w.replicas), wire.LeaseRequest{
		Node: "door", Version: uint64(len(w.sets)), Items: []wire.LeaseItem{it},
	}, span)
	if err != nil || reply.Items[0].State != wire.ItemGranted {
		w.fail("a door is not answered: %+v, %v", reply, err)
		return
	}
	for range reply.Items[0].Waiting {
		w.after(quota.Span(d.r.Int64N(int64(span))), func() {
			d.used += int(it.Cost)
			w.useCentral(k.bucket, k.limit, it.Cost)
		})
	}
}

// Filter, RLS and RLQS on one bucket keep the bound of its mode, whatever a call costs, and the
// filter refuses no caller within its limit.
func TestDoorsKeepTheBound(t *testing.T) {
	var mu sync.Mutex
	var sent, used, failures int
	most := 0.0
	games := map[*world]*doors{}
	start := func(seed uint64) *world {
		d := newDoors(seed)
		mu.Lock()
		defer mu.Unlock()
		games[d.world] = d
		return d.world
	}
	runSeeds(*first, *seeds/10, start, func(w *world) bool {
		mu.Lock()
		defer mu.Unlock()
		if w.problem != "" {
			t.Error(w.report())
			failures++
			return failures < 3
		}
		sent, used = sent+w.counts.sent, used+games[w].used
		for _, l := range w.laws {
			most = max(most, l.share)
		}
		return true
	})
	t.Logf("%d requests, %d tokens used at doors; %.2f %% of a bound was reached", sent, used, 100*most)
	if *seeds >= 500 && (used < 10_000 || most < 0.95) {
		t.Error("the runs are too tame")
	}
}
