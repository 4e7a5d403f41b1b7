package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/controlplane/internal/store/storetest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/quota/quotatest"
	"github.com/weir-proxy/weir/test/support/redistest"
)

func open(t *testing.T, server interface{ URL() string }) *redisstore.Store {
	t.Helper()
	return found(t, openURL(t, server.URL(), slog.New(slog.DiscardHandler)))
}

// found makes the Redis the store of a deployment that has lost nothing.
func found(t *testing.T, s *redisstore.Store) *redisstore.Store {
	t.Helper()
	if err := s.LayMarkers(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func openURL(t *testing.T, url string, log *slog.Logger, options ...redisstore.Option) *redisstore.Store {
	t.Helper()
	breakers := breaker.NewGroup(time.Now, func() float64 { return 0.5 }, nil)
	s, err := redisstore.Open(url, log, append([]redisstore.Option{redisstore.Breakers(breakers)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// virtual is a store whose grants run on a clock that the test sets.
func virtual(t *testing.T, s *redisstore.Store) (*redisstore.Store, func(quota.Instant)) {
	t.Helper()
	set := found(t, s).UseTestClock()
	set(storetest.Base)
	return s, set
}

// age makes nodes look as if they had been seen earlier; client has rights that a store's user does
// not need.
func age(client redis.UniversalClient) func(t *testing.T, by time.Duration) {
	return func(t *testing.T, by time.Duration) {
		t.Helper()
		const seen = "weir:{meta}:seen"
		for _, node := range client.ZRange(t.Context(), seen, 0, -1).Val() {
			if err := client.ZIncrBy(t.Context(), seen, -float64(by.Milliseconds()), node).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// durable servers keep their state when they are killed, though not when the machine is.
var durable = []string{"--appendonly", "yes", "--appendfsync", "no"}

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) *storetest.Instance {
		server := redistest.Start(t, durable...)
		s, set := virtual(t, open(t, server))
		return &storetest.Instance{
			Store: s, SetClock: set, StepsBack: true, KeepsNodes: true, Age: age(s.Client()),
			Restart: func(*testing.T) { server.Restart() },
			Lose: func(t *testing.T, now quota.Instant) {
				server.Do("FLUSHALL")
				if err := s.LayMarkersOf(t.Context(), now); err != nil {
					t.Fatal(err)
				}
				s.ClaimAgain(t.Context())
			},
			Doubt: leases.GivenBackIn, Remembers: true,
		}
	})
}

func TestGoldenVectors(t *testing.T) {
	s, set := virtual(t, open(t, redistest.Start(t)))
	bucket := byte(0)
	quotatest.RunTokenBucket(t, func(t *testing.T, p quota.Params) quotatest.Decide {
		bucket++
		key := keyhash.Key{bucket}
		return func(at quota.Instant, cost int64) (allowed bool, left int64, retry quota.Span) {
			set(storetest.Base + at)
			ask := lease.Ask{Params: p, Version: 1, Waiting: min(cost, 1), Cost: cost, Nodes: 1}
			grants, err := s.Grant(t.Context(), []leases.Item{{Bucket: key, Ask: ask}})
			if err != nil {
				t.Fatal(err)
			}
			if cost == 0 {
				grants[0].NotBefore = 0 // It is the wait for a token.
			}
			return grants[0].Waiting == ask.Waiting, grants[0].Level, grants[0].NotBefore
		}
	})
}

// one asks for waiting tokens of one bucket.
func one(t *testing.T, s *redisstore.Store, bucket keyhash.Key, p quota.Params, waiting int64) lease.Grant {
	t.Helper()
	ask := lease.Ask{Params: p, Version: 1, Waiting: waiting, Cost: 1, Nodes: 1}
	var grants []lease.Grant
	await(t, "a server that is asked", func() (asked bool) { // One may be left alone on a busy machine.
		var err error
		grants, err = s.Grant(t.Context(), []leases.Item{{Bucket: bucket, Ask: ask}})
		if err != nil && !errors.Is(err, redisstore.ErrAway) {
			t.Fatal(err)
		}
		return err == nil
	})
	return grants[0]
}

func params(t *testing.T, q int64, window quota.Span, burst int64) quota.Params {
	t.Helper()
	p, err := quota.NewParams(q, window, burst)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const keyOfBucket7 = "weir:{07}:b:07000000000000000000000000000000"

// On Redis' own clock: the key lives until the bucket is full again and up to a tenth longer, and
// then a new one is full.
func TestBucketsExpireWhenFull(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server)
	p, bucket := params(t, 100, 10*quota.Second, 100), keyhash.Key{7}
	if g := one(t, s, bucket, p, 50); g.Waiting != 50 || g.Level != 50 {
		t.Fatalf("of a fresh bucket: %+v", g)
	}
	life, err := s.Client().PTTL(t.Context(), keyOfBucket7).Result()
	if err != nil {
		t.Fatal(err)
	}
	if life < 4*time.Second || life > 5500*time.Millisecond+2*time.Millisecond {
		t.Errorf("a bucket that is full in 5 s lives for %v", life)
	}
	if g := one(t, s, bucket, p, 51); g.Waiting < 50 {
		t.Errorf("%d tokens are left, want 50 and the earned tokens", g.Waiting)
	}
	shortest, longest := time.Hour, time.Duration(0)
	for i := range byte(40) { // Made together, they do not expire together.
		other := keyhash.Key{7, i + 1}
		one(t, s, other, p, 50)
		life, err := s.Client().PTTL(t.Context(), keyOfBucket7[:14]+fmt.Sprintf("%02x", i+1)+keyOfBucket7[16:]).Result()
		if err != nil {
			t.Fatal(err)
		}
		shortest, longest = min(shortest, life), max(longest, life)
	}
	if longest-shortest < 100*time.Millisecond {
		t.Errorf("40 buckets all live for %v to %v", shortest, longest)
	}
	short := params(t, 1000, quota.Second, 1)
	one(t, s, keyhash.Key{8}, short, 1)
	deadline := time.Now().Add(5 * time.Second)
	for s.Client().Exists(t.Context(), "weir:{08}:b:08000000000000000000000000000000").Val() > 0 {
		if time.Now().After(deadline) {
			t.Fatal("a bucket that is full within a millisecond is still there")
		}
	}
}

// A bucket whose key Redis evicts has its whole burst again, once. A bucket whose key it keeps goes
// on.
func TestAnEvictedBucketIsFullOnce(t *testing.T) {
	server := redistest.Start(t, "--maxmemory-policy", "volatile-random")
	s := open(t, server)
	p := params(t, 100, quota.Hour, 100)
	buckets := make([]keyhash.Key, 100)
	key := func(b keyhash.Key) string { return fmt.Sprintf("weir:{%02x}:b:%x", b[0], b[:]) }
	for i := range buckets {
		buckets[i] = keyhash.Key{7, byte(i)}
		g := one(t, s, buckets[i], p, 100)
		if g.Waiting != 100 || s.Client().Exists(t.Context(), key(buckets[i])).Val() != 1 {
			t.Fatalf("of a fresh bucket: %+v", g)
		}
	}
	// Redis takes some of these large values for room, and some buckets with them.
	for i := range len(buckets) {
		s.Client().Set(t.Context(), fmt.Sprint("ballast", i), strings.Repeat("x", 50_000), time.Hour)
	}
	used, err := strconv.Atoi(s.Client().InfoMap(t.Context(), "memory").Val()["Memory"]["used_memory"])
	if err != nil {
		t.Fatal(err)
	}
	server.Do("CONFIG", "SET", "maxmemory", strconv.Itoa(used-1_500_000))
	server.Do("SET", "more", "x")
	server.Do("CONFIG", "SET", "maxmemory", "0")
	evicted := 0
	for _, b := range buckets {
		want := int64(0)
		if s.Client().Exists(t.Context(), key(b)).Val() == 0 {
			want = 100
			evicted++
		}
		for _, n := range []int64{want, 0} {
			if g := one(t, s, b, p, 200); g.Waiting != n {
				t.Errorf("%d granted, want %d", g.Waiting, n)
			}
		}
	}
	if evicted == 0 || evicted == len(buckets) {
		t.Errorf("%d of %d buckets were evicted, so one side was not tried", evicted, len(buckets))
	}
}

// Nothing is written for a denial, so a flood of them costs Redis no memory and no replication.
func TestDenialsWriteNothing(t *testing.T) {
	s, _ := virtual(t, open(t, redistest.Start(t)))
	p := params(t, 10, quota.Hour, 10)
	if g := one(t, s, keyhash.Key{7}, p, 11); g.Waiting != 10 {
		t.Fatalf("%+v", g)
	}
	before := s.Client().Get(t.Context(), keyOfBucket7).Val()
	if g := one(t, s, keyhash.Key{7}, p, 1); g.Waiting != 0 {
		t.Fatalf("%+v", g)
	}
	if s.Client().Get(t.Context(), keyOfBucket7).Val() != before {
		t.Error("a denial has written")
	}
}

func TestUnreadableStateIsHalfFull(t *testing.T) {
	server := redistest.Start(t)
	s, _ := virtual(t, open(t, server))
	p := params(t, 10, quota.Hour, 100)
	pack := func(list string) string {
		packed, err := s.Client().Eval(t.Context(), "return cmsgpack.pack("+list+")", nil).Text()
		if err != nil {
			t.Fatal(err)
		}
		return packed
	}
	for name, state := range map[string]string{
		"empty": "", "text": "hello", "a number": pack("1"), "a map": pack("{a=1}"),
		"another format": pack("{2,1,1,0,1,360000000,100}"),
		"too short":      pack("{1,1,1,0,1,360000000}"), "half a lease": pack("{1,1,1,0,1,360000000,100,5}"),
		"negative debt": pack("{1,1,1,-1,1,360000000,100}"), "a fraction": pack("{1,1,1,0.5,1,360000000,100}"),
		"not a number": pack("{1,1,1,0/0,1,360000000,100}"), "infinite": pack("{1,1,1,1/0,1,360000000,100}"),
		"text inside": pack("{1,1,1,'0',1,360000000,100}"), "no rate": pack("{1,1,1,0,0,360000000,100}"),
		"no unit":         pack("{1,1,1,0,1,0,100}"),
		"too many leases": pack("{1,1,1,0,1,360000000,100,1,1,2,1,3,1,4,1,5,1,6,1,7,1}"),
		"cut off":         pack("{1,1,1,0,1,360000000,100}")[:9],
	} {
		t.Run(name, func(t *testing.T) {
			if err := s.Client().Set(t.Context(), keyOfBucket7, state, 0).Err(); err != nil {
				t.Fatal(err)
			}
			for _, want := range []int64{50, 0} {
				if g := one(t, s, keyhash.Key{7}, p, 60); g.Waiting != want {
					t.Errorf("%d granted, want %d", g.Waiting, want)
				}
			}
		})
	}
	t.Run("another type", func(t *testing.T) {
		s.Client().Del(t.Context(), keyOfBucket7)
		if err := s.Client().LPush(t.Context(), keyOfBucket7, "x").Err(); err != nil {
			t.Fatal(err)
		}
		if g := one(t, s, keyhash.Key{7}, p, 60); g.Waiting != 50 {
			t.Errorf("%d granted, want 50", g.Waiting)
		}
	})
}

// A Redis that has forgotten everything gets its secret back from a replica that knows it; buckets
// that may have been in use start half full until they would be full again.
func TestLostStateIsNotFull(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server)
	secret := [16]byte{1, 2, 3}
	askSecret := func(candidate [16]byte) [16]byte {
		t.Helper()
		got, err := s.Secret(t.Context(), candidate)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	p := params(t, 100, quota.Hour, 100)
	askSecret(secret)
	if g := one(t, s, keyhash.Key{7}, p, 100); g.Waiting != 100 {
		t.Fatalf("a new deployment's bucket gives %d of 100", g.Waiting)
	}
	server.Restart() // It keeps nothing.
	if got := askSecret(secret); got != secret {
		t.Fatalf("the secret is %x", got)
	}
	if g := one(t, s, keyhash.Key{7}, p, 100); g.Waiting != 50 {
		t.Errorf("after the loss a bucket gives %d of 100, want 50", g.Waiting)
	}
	// A bucket that refills within a second cannot have been in use before the loss for longer than
	// that.
	other := openURL(t, server.URL(), slog.New(slog.DiscardHandler))
	if got, err := other.Secret(t.Context(), [16]byte{9}); err != nil || got != secret {
		t.Fatalf("another replica sees %x, %v", got, err)
	}
	if g := one(t, other, keyhash.Key{8}, p, 100); g.Waiting != 50 {
		t.Errorf("another replica gives %d of 100, want 50", g.Waiting)
	}
}

// window is an ask of a limit that counts in windows.
func window(t *testing.T, a quota.Algorithm, q int64, length quota.Span, waiting int64) lease.Ask {
	t.Helper()
	w, err := quota.NewWindows(a, q, length, 10)
	if err != nil {
		t.Fatal(err)
	}
	return lease.Ask{Params: params(t, q, length, q), Windows: w, Version: 1, Waiting: waiting, Cost: 1, Nodes: 1}
}

func askFor(t *testing.T, s *redisstore.Store, items ...leases.Item) []lease.Grant {
	t.Helper()
	grants, err := s.Grant(t.Context(), items)
	if err != nil {
		t.Fatal(err)
	}
	return grants
}

// On Redis' own clock: a window's key lives until nothing counts any more and up to a tenth longer.
func TestWindowsExpireWhenNothingCounts(t *testing.T) {
	s := open(t, redistest.Start(t))
	it := leases.Item{Bucket: keyhash.Key{7}, Ask: window(t, quota.SlidingLog, 100, 10*quota.Second, 30)}
	if g := askFor(t, s, it)[0]; g.Waiting != 30 || g.Level != 70 {
		t.Fatalf("of a fresh bucket: %+v", g)
	}
	life, err := s.Client().PTTL(t.Context(), "weir:{07}:w:07000000000000000000000000000000").Result()
	if err != nil || life < 9*time.Second || life > 11*time.Second+2*time.Millisecond {
		t.Errorf("a log of 10 s lives for %v, %v", life, err)
	}
	it.Ask.Waiting = 100
	if g := askFor(t, s, it)[0]; g.Waiting != 70 || g.NotBefore < 9*quota.Second || g.NotBefore > 10*quota.Second {
		t.Errorf("of the rest: %+v", g)
	}
}

// Windows of which the state is lost or cannot be read start with half their quota, and go on from
// there.
func TestLostWindowsAreHalfFull(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server)
	if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
		t.Fatal(err)
	}
	all := []quota.Algorithm{quota.FixedWindow, quota.SlidingWindow, quota.SlidingWindowCounter, quota.SlidingLog}
	begin := uint64(time.Now().Add(-10 * time.Minute).UnixMicro()) // No window ends while this runs.
	each := func(want [2]int64) {
		t.Helper()
		for i, a := range all {
			for _, n := range want {
				it := leases.Item{Bucket: keyhash.Key{7, byte(i)}, Ask: window(t, a, 100, quota.Hour, 100)}
				it.Ask.Windows = it.Ask.Windows.At(begin)
				if g := askFor(t, s, it)[0]; g.Waiting != n {
					t.Errorf("%v gives %d of 100, want %d", a, g.Waiting, n)
				}
			}
		}
	}
	each([2]int64{100, 0})
	server.Restart() // It keeps nothing.
	if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
		t.Fatal(err)
	}
	each([2]int64{50, 0})
	pack := func(list string) string {
		return s.Client().Eval(t.Context(), "return cmsgpack.pack("+list+")", nil).Val().(string)
	}
	for name, state := range map[string]string{
		"garbage": "\xc1garbage", "a number": pack("7"), "another format": pack("{2,1,1,5,9,1000000,1,0}"),
		"too short":   pack("{1,1,1,5,9,1000000,1}"),
		"half a mark": pack("{1,1,1,5,9,1000000,1,0,5}"), "an algorithm of tokens": pack("{1,1,1,1,9,1000000,1,0}"),
		"no quota": pack("{1,1,1,5,0,1000000,1,0}"), "no grain": pack("{1,1,1,5,9,1000000,0,0}"),
		"an offset of more": pack("{1,1,1,5,9,1000000,1,1}"),
		"a mark twice":      pack("{1,1,1,5,9,1000000,1,0,5,1,0,1}"), "text": pack("{1,1,1,5,'9',1000000,1,0}"),
		"not a number": pack("{1,1,1,5,0/0,1000000,1,0}"),
	} {
		if err := s.Client().Set(t.Context(), "weir:{07}:w:07ff0000000000000000000000000000", state,
			0).Err(); err != nil {
			t.Fatal(err)
		}
		it := leases.Item{Bucket: keyhash.Key{7, 255}, Ask: window(t, quota.SlidingLog, 100, quota.Hour, 60)}
		for _, want := range []int64{50, 0} {
			if g := askFor(t, s, it)[0]; g.Waiting != want {
				t.Errorf("%s: %d granted, want %d", name, g.Waiting, want)
			}
		}
	}
}

func TestScriptsComeBackAfterFlush(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server)
	p := params(t, 10, quota.Hour, 10)
	one(t, s, keyhash.Key{7}, p, 1)
	server.Do("SCRIPT", "FLUSH")
	if g := one(t, s, keyhash.Key{7}, p, 10); g.Waiting != 9 {
		t.Errorf("%d granted, want 9", g.Waiting)
	}
}

// A silent Redis costs a caller its own deadline and nothing more, and is charged at most once.
func TestDeadlineIsKept(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server)
	p := params(t, 10, quota.Hour, 10)
	one(t, s, keyhash.Key{7}, p, 1)
	server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Millisecond)
	defer cancel()
	ask := lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 1, Nodes: 1}
	if _, err := s.Grant(ctx, []leases.Item{{Bucket: keyhash.Key{7}, Ask: ask}}); err == nil {
		t.Error("a silent Redis has granted")
	}
	server.Resume()
	if g := one(t, s, keyhash.Key{7}, p, 10); g.Waiting != 8 && g.Waiting != 9 {
		t.Errorf("%d left, want 8 or 9: the call that timed out is charged at most once", g.Waiting)
	}
}

// A batch is one command to a single server, however many buckets it has, and nothing else: no look
// before it, none after.
func TestABatchIsOneCommand(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server)
	p := params(t, 1000, quota.Hour, 1000)
	for _, size := range []int{1, 2, 16, 64} {
		items := make([]leases.Item, size)
		for i := range items {
			items[i] = leases.Item{Bucket: keyhash.Key{byte(i)},
				Ask: lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 1, Keep: 10, Nodes: 1}}
		}
		if _, err := s.Grant(t.Context(), items); err != nil { // The script is not loaded yet.
			t.Fatal(err)
		}
		const batches = 10
		server.Do("CONFIG", "RESETSTAT")
		for range batches {
			if _, err := s.Grant(t.Context(), items); err != nil {
				t.Fatal(err)
			}
		}
		outer, inner := commands(t, server)
		if outer["evalsha"] != batches || len(outer) != 1 {
			t.Errorf("%d batches of %d buckets sent %v", batches, size, outer)
		}
		// The script itself reads the clock once, and reads and writes each bucket once.
		want := map[string]int{"time": batches, "get": batches * size, "set": batches * size}
		for name, n := range inner {
			if n > want[name] {
				t.Errorf("%d batches of %d buckets: the script called %s %d times, want at most %d", batches, size,
					name, n, want[name])
			}
		}
	}
}

// commands are how often each command has run since the statistics were reset: sent by a client,
// and called by scripts.
func commands(t *testing.T, server *redistest.Server) (sent, called map[string]int) {
	t.Helper()
	sent, called = map[string]int{}, map[string]int{}
	for line := range strings.Lines(server.Do("INFO", "commandstats")) {
		rest, ok := strings.CutPrefix(line, "cmdstat_")
		if !ok {
			continue
		}
		name, figures, _ := strings.Cut(rest, ":calls=")
		count, _, _ := strings.Cut(figures, ",")
		n, err := strconv.Atoi(count)
		if err != nil {
			t.Fatalf("INFO says %q", line)
		}
		switch name, _, _ = strings.Cut(name, "|"); name {
		case "evalsha", "eval", "script":
			sent[name] += n
		case "config", "info":
		default:
			called[name] += n
		}
	}
	return sent, called
}
