package simulation

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/controlplanetest"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/inflight/inflighttest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// lender is a control plane of games: two replicas of the real services over the model of the
// store, asked in the messages that nodes send. A new limit is a new policy set, of which the other
// replica learns late, and nodes name any of the versions.
type lender struct {
	t      *testing.T
	r      *rand.Rand
	now    quota.Instant
	store  *controlplanetest.Store
	plane  *controlplanetest.ControlPlane
	limit  int64
	latest uint64
}

var lentBucket = keyhash.Key{7}

func newLender(t *testing.T, seed, n uint64, sure bool) *lender {
	l := &lender{t: t, r: rand.New(rand.NewPCG(^seed, n)), now: quota.Instant(quota.Hour)}
	l.store = &controlplanetest.Store{Now: func() quota.Instant { return l.now }, Sure: sure}
	clock := func() time.Time { return time.UnixMicro(int64(l.now)) }
	l.plane = controlplanetest.New(l.store, 2, 3, clock, l.r.Float64)
	return l
}

func (l *lender) put(limit int64) {
	document := fmt.Sprintf(`{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"in_flight":%d}}]}`, limit)
	if _, _, err := l.plane.Put(0, []byte(document)); err != nil {
		l.t.Fatal(err)
	}
	l.limit = limit
	l.latest++
}

// Claim implements inflighttest.Control.
func (l *lender) Claim(now quota.Instant, c inflight.Claim) (a inflight.Answer) {
	l.now = now
	if c.Limit != l.limit {
		l.put(c.Limit)
	}
	body := wire.AppendLeaseRequest(nil, wire.LeaseRequest{
		Node: c.Node.ID, Boot: c.Node.Boot, Version: 1 + l.r.Uint64N(l.latest), Items: []wire.LeaseItem{{
			Kind: wire.KindClaim, Bucket: lentBucket, Waiting: c.Need,
			Keep: c.Spare, Seq: c.Seq, Hold: c.Hold, Lent: c.Lent,
		}},
	})
	status, answer := l.plane.Lease(l.r.IntN(2), body)
	var reply wire.LeaseReply
	if err := wire.DecodeLeaseReply(answer, &reply); err != nil || status != 200 || len(reply.Items) != 1 {
		l.t.Fatalf("status %d, %+v: %v", status, reply, err)
	}
	it := reply.Items[0]
	if it.State != wire.ItemGranted {
		l.t.Fatalf("%+v", it)
	}
	return inflight.Answer{Permits: it.Keep, Free: it.Level, For: it.For}
}

// Held implements inflighttest.Control.
func (l *lender) Held(now quota.Instant) int64 { return l.store.Permits(lentBucket).Held(now) }

// Lose implements inflighttest.Control: the store loses all, or goes back to an earlier state.
func (l *lender) Lose(now quota.Instant) (doubt quota.Span, remembers bool) {
	l.now = now
	if l.r.IntN(2) == 0 {
		l.store.Lose()
	} else {
		l.store.Fail(quota.Span(l.r.Int64N(int64(2 * inflight.TTL))))
	}
	return controlplanetest.GivenBackIn, true
}

// Over nodes, messages that are lost, doubled and late, replicas, new policy sets, and a store that
// loses its state: no more requests are in flight than the limit says, but for requests of nodes
// that were cut off for longer than a lease, and at rest no permit is held.
func TestPermitsOverTheControlPlane(t *testing.T) {
	seed := rand.Uint64()
	for n := range *seeds {
		g := inflighttest.Game{Now: quota.Instant(quota.Hour), Steps: 150}
		kept, free := g.Play(newLender(t, seed, n, false), seed, n)
		if !kept || !free {
			t.Fatalf("seed %d: game %d: %d in flight of %d, all is free at rest: %v", seed, n, g.Peak, g.Limit(), free)
		}
	}
}

// Bugs of nodes, messages and the store that would break the bound are found.
func TestPlantedBugsOfPermitsAreFound(t *testing.T) {
	for bug := inflighttest.None + 1; bug < inflighttest.Bugs; bug++ {
		found := false
		for n := uint64(0); n < 20_000 && !found; n++ {
			g := inflighttest.Game{Now: quota.Instant(quota.Hour), Steps: 150, Bug: bug}
			kept, _ := g.Play(newLender(t, 7, n, bug == inflighttest.Doubtless), 7, n)
			found = !kept
		}
		if !found {
			t.Errorf("bug %d is not found", bug)
		}
	}
}
