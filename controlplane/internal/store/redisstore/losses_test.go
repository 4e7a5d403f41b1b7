package redisstore_test

import (
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// grantAll asks once for `waiting` tokens of a bucket of each tag.
func grantAll(t *testing.T, s *redisstore.Store, number byte, waiting int64) (got [64]int64) {
	t.Helper()
	p := params(t, 100, quota.Hour, 100)
	for i, g := range askFor(t, s, spread(p, number, waiting)...) {
		got[i] = g.Waiting
	}
	return got
}

// each checks the tokens of every tag, by its owner.
func each(t *testing.T, when string, got [64]int64, want func(tag int) int64) {
	t.Helper()
	for tag, n := range got {
		if n != want(tag) {
			t.Errorf("%s: of tag %d %d is granted, want %d", when, tag, n, want(tag))
		}
	}
}

func watch(t *testing.T, s *redisstore.Store) {
	t.Helper()
	if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
		t.Fatal(err)
	}
}

// A shard that comes back empty, or is emptied, gives no bucket in full, from the first grant on,
// whichever node asks; the others lost nothing. No replica has to have noticed anything before.
func TestAShardLosesEverything(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, false, partly...)
	s, of := open(t, cluster), owners(cluster)
	watch(t, s)
	each(t, "a new deployment", grantAll(t, s, 1, 100), func(int) int64 { return 100 })
	meta := cluster.Primary(cluster.Slot("weir:{meta}:secret"))
	for round, lose := range []func(*redistest.Server){
		func(server *redistest.Server) { server.Do("FLUSHALL") },
		func(server *redistest.Server) { server.Restart(); cluster.AwaitWhole() },
	} {
		victim := (meta + 1 + round) % 3 // The shard with the secret does not know the buckets of the other shard.
		lost := func(tag int) int64 {
			if of[tag] == victim {
				return 50
			}
			return 0
		}
		number := byte(10 * (round + 1))
		lose(cluster.Primaries[victim])
		await(t, "the cluster", func() bool {
			_, _, err := grantWithin(t, s, spread(params(t, 100, quota.Hour, 100), number+9, 0))
			return err == nil
		})
		each(t, "drained buckets", grantAll(t, s, 1, 100), lost)
		other := openURL(t, cluster.URL(), slog.New(slog.DiscardHandler))
		watch(t, other)
		each(t, "new buckets, by another control plane", grantAll(t, other, number, 100),
			func(tag int) int64 { return 50 + full(of[tag], victim) })
		each(t, "the same, a second time", grantAll(t, s, number, 100), func(int) int64 { return 0 })
		for _, server := range cluster.Primaries { // For the next round nothing is lost.
			server.Do("FLUSHALL")
		}
		if err := s.LayMarkers(t.Context()); err != nil {
			t.Fatal(err)
		}
		grantAll(t, s, 1, 100)
	}
}

// full is the other half of a bucket whose shard has lost nothing.
func full(owner, victim int) int64 {
	if owner == victim {
		return 0
	}
	return 50
}

// A process that has its state back from a file may have an old state: the buckets in it count, and
// buckets that it does not know are in doubt.
func TestAnotherProcessIsDoubted(t *testing.T) {
	server := redistest.Start(t, durable...)
	s := open(t, server)
	watch(t, s)
	each(t, "a new deployment", grantAll(t, s, 1, 60), func(int) int64 { return 60 })
	watch(t, s)
	each(t, "nothing has happened", grantAll(t, s, 2, 100), func(int) int64 { return 100 })
	server.Restart()
	watch(t, s)
	each(t, "what it knows", grantAll(t, s, 1, 100), func(int) int64 { return 40 })
	each(t, "buckets that it does not know", grantAll(t, s, 3, 100), func(int) int64 { return 50 })
	// Buckets that refill sooner than this took are certain: the doubt ends.
	p, number := params(t, 100, quota.Millisecond, 100), byte(0)
	await(t, "the end of the doubt",
		func() bool { number++; return one(t, s, keyhash.Key{5, 5, number}, p, 100).Waiting == 100 })
}

// A replica that takes over is another process; slots that move lost nothing.
func TestATakeoverIsDoubtedAndAMoveIsNot(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, true)
	s := open(t, cluster)
	watch(t, s)
	slot := cluster.Slot(redisstore.KeyOf(keyhash.Key{7}))
	from := cluster.Primary(slot)
	to := (from + 1) % 3
	cluster.MoveSlot(slot, cluster.Primaries[from], cluster.Primaries[to])
	p := params(t, 100, quota.Hour, 100)
	await(t, "the new owner to be noted", func() bool {
		watch(t, s)
		return s.Client().Get(t.Context(), redisstore.Tagged(7, "server")).Val() == runID(cluster.Primaries[to])
	})
	if g := one(t, s, keyhash.Key{7, 1}, p, 100); g.Waiting != 100 {
		t.Errorf("after a move %d of 100 are granted", g.Waiting)
	}
	of := owners(cluster)
	of[7] = -1
	tag, other := byte(slices.Index(of[:], from)), byte(slices.Index(of[:], (from+2)%3))
	cluster.Primaries[from].Kill()
	heir := cluster.Replicas[from]
	await(t, "the replica to be noted", func() bool {
		_, _ = s.Secret(t.Context(), [16]byte{1})
		return s.Client().Get(t.Context(), redisstore.Tagged(tag, "server")).Val() == runID(heir)
	})
	if g := one(t, s, keyhash.Key{tag, 1}, p, 100); g.Waiting != 50 {
		t.Errorf("after a takeover %d of 100 are granted, want 50", g.Waiting)
	}
	if g := one(t, s, keyhash.Key{other, 1}, p, 100); g.Waiting != 100 {
		t.Errorf("on another shard %d of 100 are granted", g.Waiting)
	}
}

func runID(server *redistest.Server) string {
	_, after, _ := strings.Cut(server.Do("INFO", "server"), "run_id:")
	id, _, _ := strings.Cut(after, "\r")
	return id
}

// The share is the operator's to choose.
func TestTheFillIsAChoice(t *testing.T) {
	for _, percent := range []int64{0, 25, 100} {
		server := redistest.Start(t)
		s := openURL(t, server.URL(), slog.New(slog.DiscardHandler), redisstore.LostFill(percent))
		each(t, "a Redis without a marker", grantAll(t, s, 1, 100), func(int) int64 { return percent })
		if g := askFor(t, s, leases.Item{Bucket: keyhash.Key{7},
			Ask: window(t, quota.SlidingLog, 100, quota.Hour, 100)})[0]; g.Waiting != percent {
			t.Errorf("a window of 100 gives %d, want %d", g.Waiting, percent)
		}
	}
}

// The bound of a failover, over and over. Tokens are granted twice only if the replica had not
// heard of the grant: at most rate × lag of a bucket that was drained before, and a burst more of a
// bucket that was full.
func TestFailoversKeepTheBound(t *testing.T) {
	t.Parallel()
	const rounds, rate, burst = 8, 2000, 1000
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	primary := redistest.Start(t, separable...)
	way := startWay(t, primary.Addr())
	// Without any caution.
	s := openURL(t, "redis://"+way.addr(), slog.New(slog.DiscardHandler), redisstore.LostFill(100))
	watch(t, s)
	p := params(t, rate, quota.Second, burst)
	worst := 0.0
	for round := range byte(rounds) {
		replica := redistest.Start(t,
			append([]string{"--replicaof", "127.0.0.1 " + port(primary), "--repl-diskless-sync-delay", "0"},
				separable...)...)
		drained, full := keyhash.Key{7, round}, keyhash.Key{8, round}
		d := startDemand(t, s, p, drained)
		d.awaitCalls(t, 50)
		var idle *demand
		during := time.Duration(r.Int64N(int64(150 * time.Millisecond)))
		lag := cutReplication(t, primary, replica, func() {
			idle = startDemand(t, s, p, full) // The replica does not hear of its grants.
			for until := time.Now().Add(during); time.Now().Before(until); {
				d.awaitCalls(t, 1)
			}
		})
		cut := time.Now()
		primary.Kill()
		lag += time.Since(cut)
		replica.Do("REPLICAOF", "NO", "ONE")
		way.lead(replica.Addr())
		await(t, "the takeover to be noted",
			func() bool { _, err := s.Secret(t.Context(), [16]byte{1}); return err == nil })
		d.awaitCalls(t, 50)
		idle.awaitCalls(t, 50)
		again, above := lag.Seconds()*rate, d.finish(t)
		t.Logf("round %d: %v behind; drained: %+.0f to the bound, %.0f allowed; full: %+.0f, %.0f allowed",
			round, lag.Round(time.Millisecond), above, again, idle.finish(t), again+burst)
		worst = max(worst, above/again)
		if above > again {
			t.Errorf("round %d: the drained bucket gave %.0f too many", round, above-again)
		}
		if extra := idle.finish(t); extra > again+burst {
			t.Errorf("round %d: the full bucket gave %.0f too many", round, extra-again-burst)
		}
		primary = replica
	}
	t.Logf("at most %.2f of the allowed tokens", worst)
}

// offset is how far a server is in the stream of changes, 0 if it does not say.
func offset(t *testing.T, s *redistest.Server, name string) int64 {
	t.Helper()
	_, after, _ := strings.Cut(s.Do("INFO", "replication"), name+":")
	text, _, _ := strings.Cut(after, "\r")
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

func port(s *redistest.Server) string {
	_, port, _ := net.SplitHostPort(s.Addr())
	return port
}

// While a slot moves, and its marker has not moved yet, a caller that comes then starts with half:
// a missing bucket may be a lost bucket. Once the marker has moved callers start in full.
func TestABucketThatBeginsWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, false)
	s := open(t, cluster)
	watch(t, s)
	p := params(t, 100, quota.Hour, 100)
	if g := one(t, s, keyhash.Key{7, 1}, p, 30); g.Waiting != 30 {
		t.Fatalf("%+v", g)
	}
	slot := cluster.Slot(redisstore.KeyOf(keyhash.Key{7}))
	from := cluster.Primary(slot)
	source, target, number := cluster.Primaries[from], cluster.Primaries[(from+1)%3], strconv.Itoa(slot)
	target.Do("CLUSTER", "SETSLOT", number, "IMPORTING", source.Do("CLUSTER", "MYID"))
	source.Do("CLUSTER", "SETSLOT", number, "MIGRATING", target.Do("CLUSTER", "MYID"))
	if g := one(t, s, keyhash.Key{7, 1}, p, 70); g.Waiting != 70 {
		t.Errorf("of a known bucket %d of the 70 that are left are granted", g.Waiting)
	}
	if g := one(t, s, keyhash.Key{7, 2}, p, 100); g.Waiting != 50 {
		t.Errorf("of a bucket that begins meanwhile %d of 100 are granted, want 50", g.Waiting)
	}
	cluster.MoveSlot(slot, source, target)
	if g := one(t, s, keyhash.Key{7, 3}, p, 100); g.Waiting != 100 {
		t.Errorf("once all has moved %d of 100 are granted", g.Waiting)
	}
}
