package enforcement_test

import (
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// free has nodes forget a bucket of two bytes.
func (r *replica) free(n int) {
	r.t.Helper()
	b := []keyhash.Key{{byte(n >> 8), byte(n)}}
	if err := r.Free(r.t.Context(), b, true, audit.Entry{By: "me"}); err != nil {
		r.t.Fatal(err)
	}
}

// hears is a node at a revision that asks until there is nothing new: of which buckets it hears.
func (r *replica) hears(revision uint64) (buckets map[keyhash.Key]int, at uint64) {
	r.t.Helper()
	buckets = map[keyhash.Key]int{}
	for {
		m, news := r.message(revision, false)
		if !news {
			return buckets, revision
		}
		if m.Revision <= revision {
			r.t.Fatalf("a node at %d receives %d", revision, m.Revision)
		}
		for _, f := range m.Freed {
			if f.Revision > revision {
				buckets[f.Bucket]++
			}
		}
		revision = m.Revision
	}
}

// A node that was away hears of each bucket that was changed meanwhile, once, however many there
// are.
func TestANodeHearsOfEachChangedBucket(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *store, one, two *replica) {
		one.free(0)
		_, at := one.hears(0)
		const changed = 3*wire.MaxFreed + 44
		for n := range changed {
			one.free(n + 1)
			if n%3 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(time.Second)
		for name, r := range map[string]*replica{"the replica that made them": one, "another one": two} {
			buckets, last := r.hears(at)
			if len(buckets) != changed || last != r.Revision() {
				t.Errorf("through %s a node hears of %d buckets of %d, up to %d of %d",
					name, len(buckets), changed, last, r.Revision())
			}
			for b, n := range buckets {
				if n != 1 {
					t.Errorf("%v comes %d times", b, n)
				}
			}
		}
	})
}

// Buckets that are changed through two replicas while the store is away: the nodes of both hear of
// all, whichever of the two was later.
func TestChangedBucketsOfTwoReplicasAreJoined(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, one, two *replica) {
		one.free(1)
		time.Sleep(time.Second)
		s.set(func(s *store) { s.away = true })
		for n := range 5 {
			one.free(10 + n)
			time.Sleep(time.Millisecond)
			two.free(20 + n)
			time.Sleep(time.Millisecond)
		}
		_, ofOne := one.hears(0)
		_, ofTwo := two.hears(0)
		two.ban(7) // It alone moves the nodes of this replica on.
		_, ofTwo = two.hears(ofTwo)
		s.set(func(s *store) { s.away = false })
		time.Sleep(time.Second)
		for name, c := range map[string]struct {
			at    uint64
			first int
		}{"one": {ofOne, 20}, "two": {ofTwo, 10}} {
			for _, r := range []*replica{one, two} {
				buckets, _ := r.hears(c.at)
				for n := range 5 {
					if buckets[keyhash.Key{0, byte(c.first + n)}] == 0 {
						t.Errorf("a node of replica %s does not hear of bucket %d", name, c.first+n)
					}
				}
			}
		}
		d, _ := s.now()
		time.Sleep(time.Minute)
		if again, _ := s.now(); again.Revision != d.Revision || len(d.Freed.List) != 11 {
			t.Errorf("%d buckets at revision %d, a minute later at %d", len(d.Freed.List), d.Revision, again.Revision)
		}
	})
}

// So it is where each replica changed more buckets than a message has, and both together more than
// one replica takes, since neither knew of the other's.
func TestManyChangedBucketsOfTwoReplicasAreJoined(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, one, two *replica) {
		time.Sleep(time.Second)
		s.set(func(s *store) { s.away = true })
		const ofOne, ofTwo = enforcement.MaxFreed - 100, wire.MaxFreed + 140
		for n := range ofOne {
			one.free(n)
			if n < ofTwo {
				two.free(10_000 + n)
			}
			time.Sleep(100 * time.Microsecond)
		}
		_, nodeOfOne := one.hears(0)
		_, nodeOfTwo := two.hears(0)
		s.set(func(s *store) { s.away = false })
		time.Sleep(time.Second)
		for name, c := range map[string]struct {
			at           uint64
			first, count int
		}{"one": {nodeOfOne, 10_000, ofTwo}, "two": {nodeOfTwo, 0, ofOne}} {
			for _, r := range []*replica{one, two} {
				buckets, _ := r.hears(c.at)
				missed := 0
				for n := range c.count {
					if b := c.first + n; buckets[keyhash.Key{byte(b >> 8), byte(b)}] == 0 {
						missed++
					}
				}
				if missed > 0 {
					t.Errorf("a node of replica %s does not hear of %d of %d buckets", name, missed, c.count)
				}
			}
		}
	})
}
