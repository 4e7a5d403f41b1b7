package bucketstore_test

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/test/linear"
)

// taking is a Change that takes tokens by the rule of local buckets, or nearly.
type taking struct {
	now       quota.Instant
	cost      int64
	spill     bool // a planted bug: the bucket refills above its burst
	undo      bool // a planted bug: an attempt that was not stored is given back, though it never was charged
	charged   bool
	allowed   bool
	remaining int64
}

func (c *taking) Apply(e *bucketstore.Entry) bool {
	s := e.State
	if c.spill && c.now > s.Last {
		s = quota.State{Debt: s.Debt - int64(c.now-s.Last)*ten.Num, Last: c.now}
	}
	if c.undo && c.charged {
		s.Debt = max(0, s.Debt-c.cost*ten.Den)
	}
	var r quota.Result
	s, r = ten.Take(s, c.now, c.cost)
	c.allowed, c.remaining, c.charged = r.Allowed, ten.Remaining(s), r.Allowed
	e.State, e.Params = s, ten
	return r.Allowed
}

// careless is shared data that a worker writes to without comparing: always, or to create a bucket,
// as by cas 0.
type careless struct {
	*shareddatatest.Data
	creates, always bool
}

func (d careless) PutIfAbsent(key, value []byte) bool {
	if d.creates {
		d.Put(key, value)
		return true
	}
	return d.Data.PutIfAbsent(key, value)
}

func (d careless) CompareAndSwap(key, value []byte, cas uint32) bool {
	if d.always {
		d.Put(key, value)
		return true
	}
	return d.Data.CompareAndSwap(key, value, cas)
}

// race lets workers take tokens of a few buckets of one slot at once. Each yields now and then
// between reading and writing.
func race(seed uint64, moving bool, creates, always bool, bug taking) *linear.History {
	const workers, each, keys = 4, 12, 2
	data := &shareddatatest.Data{Before: func(string, []byte) {
		if rand.IntN(2) == 0 {
			runtime.Gosched()
		}
	}}
	history := &linear.History{}
	var wait sync.WaitGroup
	for w := range workers {
		wait.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			st := bucketstore.New(careless{data, creates, always}, space, 8, 0)
			now := quota.Instant(0)
			for range each {
				if moving {
					now += quota.Instant(r.Int64N(2 * int64(quota.Second)))
				}
				k, c := r.IntN(keys), bug
				c.now, c.cost = now, 1+r.Int64N(4)
				input := linear.Take{Key: k, Cost: c.cost, Nows: []int64{int64(now)}}
				called := history.Begin()
				err := st.Update(bucketstore.Local, key(0, byte(k)), now, &c)
				history.End(w, called, input,
					linear.Taken{Allowed: c.allowed, Remaining: c.remaining, Contended: err != nil})
			}
		})
	}
	wait.Wait()
	return history
}

var tens = linear.Buckets(ten.Num, ten.Den, ten.Burst)

// Whatever order workers come in, each sees a bucket as if it were alone with it: with time
// standing still, and with a clock of its own for each worker, of which the others' can be ahead.
func TestWorkersAreLinearizable(t *testing.T) {
	for seed := range uint64(1000) {
		for _, moving := range []bool{false, true} {
			if h := race(seed, moving, false, false, taking{}); !h.Linearizable(t, tens) {
				t.Fatalf("seed %d, time moves: %v: no order explains\n%v", seed, moving, h)
			}
		}
	}
}

// The test above notices planted bugs.
func TestPlantedBugsAreNotLinearizable(t *testing.T) {
	for _, c := range []struct {
		name                    string
		moving, creates, always bool
		bug                     taking
	}{
		{name: "a bucket is created regardless of another bucket", creates: true},
		{name: "an update is written regardless of another update", always: true},
		{name: "a bucket refills above its burst", moving: true, bug: taking{spill: true}},
		{name: "uncharged tokens are given back", bug: taking{undo: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			const tries = 2000
			for seed := range uint64(tries) {
				if h := race(seed, c.moving, c.creates, c.always, c.bug); !h.Linearizable(t, tens) {
					t.Logf("found by seed %d", seed)
					return
				}
			}
			t.Errorf("not found in %d histories", tries)
		})
	}
}
