package inflight_test

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/shared/quota"
)

// A request that waits in vain while the control plane answers finds all places taken, whenever its
// wait ends: also in a pause of its node, and in the tick that ends the pause. Only where no answer
// comes is it not known whether there is a place.
func TestNoneIsUnansweredWhereTheControlPlaneAnswers(t *testing.T) {
	for range 50 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 1))
		f := newFleet(5, 2, 2)
		waiting := f.nodes[1]
		for i := range 2 * f.limit { // Each node holds some.
			f.begin(f.nodes[i%2], int(i/2%2), quota.Instant(200+r.IntN(800))*ms, func(bool) {})
		}
		f.run(f.now + 50*ms)
		ends := map[inflight.State]int{}
		wait := func() {
			f.run(f.now + quota.Instant(r.Int64N(int64(20*ms))))
			s, b := f.seat(), waiting.books[r.IntN(2)]
			s.Patient = true
			if b.Take(s, f.now) == inflight.Full && b.Wait(s, f.now+50*ms) {
				waiting.waits[s] = func(held bool) {
					if ends[s.State]++; held {
						f.at(f.now+quota.Instant(50+r.IntN(500))*ms, func() {
							b.Release(s.Place, f.now)
							f.resume(waiting)
						})
					}
				}
				f.claim(waiting, 0)
				f.claim(waiting, 1)
			}
		}
		for range 200 {
			wait()
		}
		f.run(f.now + sec)
		if ends[inflight.Unanswered] > 0 || ends[inflight.Full] == 0 || ends[inflight.Held] == 0 {
			t.Fatalf("seed %d: they ended as %v", seed, ends)
		}
		waiting.cut = true
		f.run(f.now + 15*sec)
		clear(ends)
		for range 20 {
			wait()
		}
		if f.run(f.now + sec); ends[inflight.Full] > 0 || ends[inflight.Unanswered] == 0 {
			t.Fatalf("seed %d: without an answer they ended as %v", seed, ends)
		}
	}
}

// A burst that comes before the node has permits waits for them, and the limit's number of requests
// waits behind, as in a burst at a node that has permits. When the control plane has answered, no
// more than that wait.
func TestABurstWaitsForPermitsAndBehind(t *testing.T) {
	for _, held := range []int64{0, 2, 5} { // By another node.
		f := newFleet(5, 2, 1)
		for range held {
			f.begin(f.nodes[1], 0, 60*sec, func(bool) {})
			f.run(f.now + 20*ms)
		}
		f.run(f.now + sec) // Its spare permits go back.
		e, states := f.nodes[0], map[inflight.State]int64{}
		var seats []*inflight.Seat
		for range 4 * f.limit {
			s := f.seat()
			s.Patient = true
			if e.books[0].Take(s, f.now) == inflight.Full && e.books[0].Wait(s, f.now+300*ms) {
				f.claim(e, 0)
			}
			seats = append(seats, s)
		}
		f.run(f.now + 100*ms)
		for _, s := range seats {
			states[s.State]++
		}
		free := f.limit - held
		want := map[inflight.State]int64{inflight.Waiting: f.limit, inflight.Full: 3*f.limit - free}
		if free > 0 {
			want[inflight.Held] = free
		}
		if !maps.Equal(states, want) {
			t.Errorf("%d of %d places are taken: they are %v, want %v", held, f.limit, states, want)
		}
	}
}
