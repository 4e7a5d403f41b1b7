package delay_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/filter/internal/decide/delay"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

func turn(bucket byte, cost int64, at quota.Instant) delay.Turn {
	return delay.Turn{Key: keyhash.Key{bucket}, Cost: cost, At: at}
}

func TestReleaseByTimeThenArrival(t *testing.T) {
	q := delay.Queue{Bound: 10}
	q.Wait(1, turn(1, 1, 30), false)
	q.Wait(2, turn(2, 1, 10), false)
	q.Wait(3, turn(3, 1, 30), false)
	q.Wait(4, turn(4, 1, 20), true)
	for _, step := range []struct {
		now  quota.Instant
		want []uint32
	}{{9, nil}, {20, []uint32{2, 4}}, {20, nil}, {30, []uint32{1, 3}}} {
		due := q.NextDue()
		if got := q.Release(step.now, 99); !slices.Equal(got, step.want) || (len(got) > 0) != (due <= step.now) {
			t.Errorf("at %d: %v, want %v; it was due at %d", step.now, got, step.want, due)
		}
	}
}

// A request behind a request that went away moves up, in the same bucket and at the same cost; the
// last turn comes back.
func TestLeaveMovesUp(t *testing.T) {
	q := delay.Queue{Bound: 10}
	q.Wait(1, turn(1, 1, 10), false)
	q.Wait(2, turn(1, 1, 20), false)
	q.Wait(3, turn(2, 1, 25), false)
	q.Wait(4, turn(1, 2, 30), false)
	q.Wait(5, turn(1, 1, 50), false)
	q.Wait(6, turn(1, 1, 60), true)
	if freed, ok := q.Leave(1); !ok || freed != turn(1, 1, 50) {
		t.Errorf("freed %v %+v", ok, freed)
	}
	for _, step := range []struct {
		now  quota.Instant
		want []uint32
	}{{10, []uint32{2}}, {20, []uint32{5}}, {25, []uint32{3}}, {30, []uint32{4}}, {50, nil}} {
		if got := q.Release(step.now, 99); !slices.Equal(got, step.want) {
			t.Errorf("at %d: %v, want %v", step.now, got, step.want)
		}
	}
	if _, ok := q.Leave(6); ok || q.Len() != 0 {
		t.Error("a fixed turn was handed back, or it stayed")
	}
	if _, ok := q.Leave(99); ok {
		t.Error("an unknown stream had a turn")
	}
}

func TestKeptTurnsPass(t *testing.T) {
	q := delay.Queue{Bound: 2}
	q.Keep(turn(1, 1, 20), 0)
	q.Keep(turn(1, 1, 10), 0)
	q.Keep(turn(1, 1, 30), 0) // beyond the bound
	if _, ok := q.Kept(keyhash.Key{1}, 0, 2, 0, true); ok {
		t.Error("a turn of another cost")
	}
	if p, ok := q.Kept(keyhash.Key{1}, 0, 1, 0, false); !ok || p.At != 10 {
		t.Errorf("%v %+v", ok, p)
	}
	if p, ok := q.Kept(keyhash.Key{1}, 0, 1, 10, true); !ok || p.At != 20 {
		t.Errorf("the first has passed: %v %+v", ok, p)
	}
	if _, ok := q.Kept(keyhash.Key{1}, 0, 1, 10, true); ok {
		t.Error("a turn was handed out twice")
	}
}

// Whichever request leaves, the turns in use are a part of those there were, no request waits
// longer than at first, and the order stays.
func TestLeavingNeverReorders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := delay.Queue{Bound: 100}
		first := map[uint32]quota.Instant{}
		n := uint32(rapid.IntRange(1, 30).Draw(t, "streams"))
		for s := range n {
			p := turn(1, 1, quota.Instant(s+1)*10)
			first[s] = p.At
			q.Wait(s, p, false)
		}
		gone := map[uint32]bool{}
		for range rapid.IntRange(0, 20).Draw(t, "leave") {
			s := rapid.Uint32Range(0, n-1).Draw(t, "stream")
			if _, ok := q.Leave(s); ok == gone[s] {
				t.Fatalf("stream %d: %v", s, ok)
			}
			gone[s] = true
		}
		var released []uint32
		for at := quota.Instant(0); at <= quota.Instant(n)*10; at += 10 {
			streams := q.Release(at, 1000)
			if len(streams) > 1 {
				t.Fatalf("%d at once", len(streams))
			}
			for _, s := range streams {
				if at > first[s] || gone[s] {
					t.Fatalf("stream %d, promised %d, at %d; gone %v", s, first[s], at, gone[s])
				}
				released = append(released, s)
			}
		}
		if !slices.IsSorted(released) || len(released) != int(n)-len(gone) {
			t.Fatalf("released %v, %d gone of %d", released, len(gone), n)
		}
	})
}
