package redisstore_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/controlplane/internal/store/storetest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// A cluster does all that one server does. It is the same for all parts of the suite, emptied for
// each.
func TestClusterConformance(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, false, durable...)
	storetest.Run(t, func(t *testing.T) *storetest.Instance {
		for _, server := range cluster.Primaries {
			if got := server.Do("FLUSHALL"); got != "+OK" {
				t.Fatal(got)
			}
		}
		s, set := virtual(t, open(t, cluster))
		return &storetest.Instance{
			Store: s, SetClock: set, StepsBack: true, KeepsNodes: true, Age: age(s.Client()), Fewer: 5,
			Restart: func(*testing.T) {
				for _, server := range cluster.Primaries {
					server.Restart()
				}
				cluster.AwaitWhole()
			},
		}
	})
}

// A group over two slots is granted all or none; in the second case the charge of one part is lost.
func TestClusterGroups(t *testing.T) {
	t.Parallel()
	s := open(t, redistest.StartCluster(t, 3, false))
	p := params(t, 10, quota.Hour, 10)
	group := []leases.Item{
		{Bucket: keyhash.Key{1, 1}, Group: 1, Ask: lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 1, Nodes: 1}},
		{Bucket: keyhash.Key{2, 1}, Group: 1, Ask: window(t, quota.SlidingLog, 2, quota.Hour, 1)},
		{Bucket: keyhash.Key{1, 2}, Group: 1, Ask: lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 1, Nodes: 1}},
	}
	for n, want := range []int64{1, 1, 0} {
		for i, g := range askFor(t, s, group...) {
			if g.Waiting != want || (g.NotBefore > 0) != (n == 2 && i == 1) {
				t.Errorf("request %d, item %d: %+v", n, i, g)
			}
		}
	}
}

// demand asks for more tokens of some buckets than they hold, all the time, and measures its
// grants.
type demand struct {
	store   *redisstore.Store
	p       quota.Params
	begin   time.Time
	stop    context.CancelFunc
	workers sync.WaitGroup
	took    time.Duration // from begin to the end; 0 before
	buckets []*source
}

// source is one bucket under demand.
type source struct {
	bucket keyhash.Key
	// beside are the other buckets of the same tag, which each call looks at too: one script needs
	// them all.
	beside  []keyhash.Key
	granted atomic.Int64
	calls   atomic.Int64
	// failed is when calls began to fail, ns since the begin, 0 while they do not; gap is the
	// longest time that they did.
	failed, gap atomic.Int64
	last        atomic.Pointer[error]
}

// callTimeout is roughly the time that the control plane allows for a grant.
const callTimeout = 150 * time.Millisecond

// startDemand starts a worker for each bucket. It drains the buckets first, so that from then on
// they only give the tokens that they earn.
func startDemand(t *testing.T, s *redisstore.Store, p quota.Params, buckets ...keyhash.Key) *demand {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	d := &demand{store: s, p: p, begin: time.Now(), stop: stop}
	t.Cleanup(func() { stop(); d.workers.Wait() })
	for _, bucket := range buckets {
		from := &source{bucket: bucket}
		for _, other := range buckets {
			if other != bucket && other[0] == bucket[0] {
				from.beside = append(from.beside, other)
			}
		}
		d.buckets = append(d.buckets, from)
		if got := one(t, s, bucket, p, p.Burst).Waiting; got != p.Burst {
			t.Fatalf("a fresh bucket grants %d of its %d", got, p.Burst)
		}
		from.granted.Add(p.Burst)
		d.workers.Go(func() {
			for ctx.Err() == nil {
				d.ask(ctx, from)
			}
		})
	}
	return d
}

func (d *demand) ask(ctx context.Context, from *source) {
	within, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ask := lease.Ask{Params: d.p, Version: 1, Waiting: d.p.Burst, Cost: 1, Nodes: 1}
	items := []leases.Item{{Bucket: from.bucket, Ask: ask}}
	ask.Waiting = 0
	for _, other := range from.beside {
		items = append(items, leases.Item{Bucket: other, Ask: ask})
	}
	grants, err := d.store.Grant(within, items)
	now := int64(time.Since(d.begin))
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
	case err != nil:
		from.last.Store(&err)
		from.failed.CompareAndSwap(0, now)
	default:
		from.granted.Add(grants[0].Waiting)
		from.calls.Add(1)
		if since := from.failed.Swap(0); since != 0 {
			from.gap.Store(max(from.gap.Load(), now-since))
		}
	}
}

// awaitCalls waits until every bucket has been granted from that many times more.
func (d *demand) awaitCalls(t *testing.T, n int64) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for _, from := range d.buckets {
		for target := from.calls.Load() + n; from.calls.Load() < target; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("grants do not go on: %v", *from.last.Load())
			}
		}
	}
}

// finish stops the demand and returns by how many tokens its only bucket has exceeded the bound.
func (d *demand) finish(t *testing.T) float64 {
	t.Helper()
	if d.took == 0 {
		d.stop()
		d.workers.Wait()
		d.took = time.Since(d.begin)
	}
	return float64(d.buckets[0].granted.Load()) - float64(d.p.Burst) -
		d.took.Seconds()*float64(quota.Second)*float64(d.p.Num)/float64(d.p.Den)
}

// end stops the demand and checks the bound of each bucket, which may be exceeded by `above`
// tokens.
func (d *demand) end(t *testing.T, above float64) {
	t.Helper()
	d.stop()
	d.workers.Wait()
	took := time.Since(d.begin)
	for _, from := range d.buckets {
		bound := float64(d.p.Burst) + took.Seconds()*float64(quota.Second)*float64(d.p.Num)/float64(d.p.Den)
		granted := float64(from.granted.Load())
		t.Logf("bucket %x: %.0f granted, %+.0f to the bound of %.0f; the longest time of errors was %v; %d calls",
			from.bucket[:1], granted, granted-bound, bound, time.Duration(from.gap.Load()), from.calls.Load())
		if granted > bound+above {
			t.Errorf("bucket %x: %.0f granted, above the bound %.0f and the %.0f that may be granted twice",
				from.bucket[:1], granted, bound, above)
		}
	}
}

// While slots move from one server to another grants go on, and none is given twice, though neither
// server can run a script of two buckets of which one has moved.
func TestClusterSlotsMoveUnderLoad(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, false)
	s := open(t, cluster)
	slot := cluster.Slot(keyOfBucket7)
	from := cluster.Primary(slot)
	d := startDemand(t, s, params(t, 2000, quota.Second, 2000), keyhash.Key{7}, keyhash.Key{7, 1}, keyhash.Key{8})
	d.awaitCalls(t, 100)
	for range 3 {
		to := (from + 1) % len(cluster.Primaries)
		cluster.MoveSlot(slot, cluster.Primaries[from], cluster.Primaries[to])
		d.awaitCalls(t, 100)
		from = to
	}
	d.end(t, 0)
	for _, b := range d.buckets {
		if gap := time.Duration(b.gap.Load()); gap > 5*time.Second {
			t.Errorf("calls failed for %v", gap)
		}
	}
}

// separable servers replicate as a user of their own, who can be shut out.
var separable = []string{"--masteruser", "replica", "--masterauth", "x", "--user", "replica", "on", ">x", "+@all", "~*",
	"&*"}

// A primary that dies is replaced by its replica. Grants that it had not sent to the replica can be
// granted again: no more than a burst and the tokens that are earned in that time. The test cuts
// replication off for a while to see it.
func TestClusterPrimaryDiesUnderLoad(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, true, separable...)
	slot := cluster.Slot(keyOfBucket7)
	victim, heir := cluster.Primaries[cluster.Primary(slot)], cluster.Replicas[cluster.Primary(slot)]
	p := params(t, 1000, quota.Second, 5000)
	d := startDemand(t, open(t, cluster), p, keyhash.Key{7}, keyhash.Key{8}, keyhash.Key{9})
	d.awaitCalls(t, 100)
	lag := cutReplication(t, victim, heir, func() { d.awaitCalls(t, 500) })
	killed := time.Now()
	victim.Kill()
	await(t, "the replica to take over", heir.IsPrimary)
	promoted := time.Since(killed)
	d.awaitCalls(t, 100)
	t.Logf("replication was %v behind; the replica took over after %v, grants went on after %v", lag, promoted,
		time.Since(killed))
	d.end(t, float64(p.Burst)+lag.Seconds()*1000)
}

// cutReplication keeps a primary's replica out while something happens, and returns how much of the
// past it may lack at the end: the time since a moment of which it certainly has everything.
func cutReplication(t *testing.T, primary, replica *redistest.Server, during func()) time.Duration {
	t.Helper()
	await(t, "the replica to follow", func() bool {
		info := primary.Do("INFO", "replication")
		return strings.Contains(info, "state=online") && !strings.Contains(info, "offset=0,")
	})
	begin, has := time.Now(), offset(t, primary, "master_repl_offset")
	await(t, "the replica to have the grants so far",
		func() bool { return offset(t, replica, "slave_repl_offset") >= has })
	primary.Do("ACL", "SETUSER", "replica", "off")
	primary.Do("CLIENT", "KILL", "TYPE", "replica")
	during()
	return time.Since(begin)
}

func await(t *testing.T, what string, ready func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ready(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// The Sentinels' word is followed: after the primary's death the replica is asked.
func TestSentinelPrimaryDiesUnderLoad(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinels(t, separable...)
	s := open(t, servers)
	p := params(t, 1000, quota.Second, 5000)
	if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
		t.Fatal(err)
	}
	d := startDemand(t, s, p, keyhash.Key{7}, keyhash.Key{8})
	d.awaitCalls(t, 100)
	lag := cutReplication(t, servers.Primary, servers.Replica, func() { d.awaitCalls(t, 500) })
	killed := time.Now()
	servers.Primary.Kill()
	d.awaitCalls(t, 100)
	t.Logf("replication was %v behind; grants went on after %v", lag, time.Since(killed))
	d.end(t, float64(p.Burst)+lag.Seconds()*1000)
	if got, err := s.Secret(t.Context(), [16]byte{2}); err != nil || got != [16]byte{1} {
		t.Errorf("the replica's secret is %x, %v", got, err)
	}
	if err := s.Client().Get(t.Context(), "weir:nothing").Err(); !errors.Is(err, redis.Nil) {
		t.Error(err)
	}
}
