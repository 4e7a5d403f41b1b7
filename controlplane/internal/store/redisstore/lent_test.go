package redisstore_test

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
	"github.com/weir-proxy/weir/test/support/redistest"
)

var lentBucket = keyhash.Key{7, 7}

// claims is a node that claims permits of a limit of 10 through a control plane.
type claims struct {
	t    *testing.T
	s    *redisstore.Store
	node string
	seq  uint64
	held int64
}

// replica opens a store as a control plane with a clock does.
func replica(t *testing.T, url string) *redisstore.Store {
	t.Helper()
	return openURL(t, url, slog.New(slog.DiscardHandler), redisstore.Now(time.Now))
}

// claim claims n more permits. It returns how many it has then, and for how long they are in doubt.
func (c *claims) claim(n int64) (permits int64, doubt quota.Span) {
	c.t.Helper()
	c.seq++
	grants := askFor(c.t, c.s, leases.Item{Bucket: lentBucket, Kind: wire.KindClaim, Claim: inflight.Claim{
		Node: inflight.Node{ID: c.node, Boot: 1}, Seq: c.seq, Hold: c.held, Lent: c.held, Need: n, Limit: 10, Nodes: 2,
	}})
	c.held = grants[0].Keep
	return c.held, grants[0].NotBefore
}

// knows makes every control plane look, as they do three times a second, until the store knows the
// nodes' permits.
func knows(t *testing.T, want int64, all ...*redisstore.Store) {
	t.Helper()
	await(t, "the permits to be known", func() bool {
		for _, s := range all {
			watch(t, s)
		}
		l, now, err := all[0].Holders(t.Context(), lentBucket)
		return err == nil && l.Held(now) == want
	})
}

// A Redis loses the holders of permits, by FLUSHALL or as another process without its state. The
// control planes give them back, so a second later exactly the free permits are lent again. The
// second node has not been heard of since.
func TestLostPermitsAreGivenBack(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*redistest.Server){
		"FLUSHALL": func(s *redistest.Server) { s.Do("FLUSHALL") },
		"killed":   func(s *redistest.Server) { s.Restart() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			one, two, a, _ := lending(t, server.URL())
			lose(server)
			if got, doubt := a.claim(5); got != 4 || doubt == 0 {
				t.Errorf("%d permits at once after the loss, in doubt for %d: want the 4 that it has", got, doubt)
			}
			knows(t, 7, one, two)
			time.Sleep(time.Duration(leases.GivenBackIn) * time.Microsecond)
			if got, doubt := a.claim(5); got != 7 || doubt != 0 {
				t.Errorf("a second later %d permits, in doubt for %d: want 10 - 3", got, doubt)
			}
		})
	}
}

// lending are two replicas through which two nodes hold 4 and 3 permits.
func lending(t *testing.T, url string) (one, two *redisstore.Store, a, b *claims) {
	one, two = replica(t, url), replica(t, url)
	watch(t, one)
	watch(t, two)
	a, b = &claims{t: t, s: one, node: "a"}, &claims{t: t, s: two, node: "b"}
	a.claim(4)
	b.claim(3)
	return one, two, a, b
}

// A Redis that goes on as another process with all that it had: no permit is in doubt.
func TestPermitsThatWereNotLostAreNotDoubted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, durable...)
	one, two, a, _ := lending(t, server.URL())
	server.Restart()
	watch(t, one)
	watch(t, two)
	if got, doubt := a.claim(5); got != 7 || doubt != 0 {
		t.Errorf("%d permits, in doubt for %d: want 10 - 3", got, doubt)
	}
}

// A Redis comes back with an older state, to a user without the right to INFO. The looks that it
// has forgotten show this. Buckets that it does not know start half full, and permits come back.
func TestAnOlderStateIsNoticedWithoutInfo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := redistest.Start(t, "--dir", dir)
	user := func() {
		t.Helper()
		if got := server.Do(strings.Fields("ACL SETUSER weir on >x " + redisstore.ACL + " -info")...); got != "+OK" {
			t.Fatal(got)
		}
	}
	user()
	s := replica(t, "redis://weir:x@"+server.Addr())
	watch(t, s)
	if got := server.Do("SAVE"); got != "+OK" {
		t.Fatal(got)
	}
	watch(t, s)
	a, p := &claims{t: t, s: s, node: "a"}, params(t, 100, quota.Hour, 100)
	a.claim(4)
	if g := one(t, s, keyhash.Key{1}, p, 100); g.Waiting != 100 {
		t.Fatalf("%+v", g)
	}
	server.Restart()
	user()
	knows(t, 4, s)
	if g := one(t, s, keyhash.Key{1}, p, 100); g.Waiting != 50 {
		t.Errorf("%d of 100 tokens of a bucket that the older state does not have, want 50", g.Waiting)
	}
	if got, doubt := a.claim(1); got != 4 || doubt == 0 {
		t.Errorf("%d permits, in doubt for %d: want the 4 that it has", got, doubt)
	}
}

// A failover by Sentinel's word, with writes paused before: the new primary has all claims, so it
// lends the free permits at once. Nodes claim all the time, as with requests that wait.
func TestAPlannedFailoverDoubtsNoPermit(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinels(t, separable...)
	one, two, a, b := lending(t, servers.URL())
	servers.Primary.Do("CLIENT", "PAUSE", "20000", "WRITE")
	if got := servers.Watchers[1].Do("SENTINEL", "FAILOVER", redistest.MasterName); got != "+OK" {
		t.Fatal(got)
	}
	await(t, "the new primary", func() bool {
		for _, s := range []*redisstore.Store{one, two} { // As every look does, which comes first.
			if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
				return false
			}
		}
		return servers.Replica.IsPrimary()
	})
	if got, doubt := a.claim(5); got != 7 || doubt != 0 {
		t.Errorf("%d permits, in doubt for %d: want 10 - 3", got, doubt)
	}
	if got, doubt := b.claim(1); got > 3 || doubt != 0 {
		t.Errorf("%d permits, in doubt for %d: want no more than it had", got, doubt)
	}
}

// A control plane that has answered more claims than it can remember does not know all claims that
// Redis has lost. So permits are in doubt until nodes have reported their permits themselves, also
// if another control plane remembers all its answers.
func TestMorePermitsThanAreRemembered(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	full, other := replica(t, server.URL()), replica(t, server.URL())
	full.RememberLent(1)
	watch(t, full)
	watch(t, other)
	a, b, c := &claims{t: t, s: full, node: "a"}, &claims{t: t, s: full, node: "b"}, &claims{t: t, s: other, node: "c"}
	a.claim(4)
	b.claim(3)
	c.claim(1)
	lost := serverTime(t, server)
	server.Do("FLUSHALL")
	knows(t, 5, full, other)
	if got := doubted(t, server, lost); got < inflight.RenewedIn {
		t.Errorf("in doubt for %d after the loss, want %d", got, inflight.RenewedIn)
	}
	got, doubt := a.claim(5)
	if doubt > inflight.RenewedIn || doubt > 0 && got != 4 {
		t.Errorf("%d permits, in doubt for %d: want the 4 that it has", got, doubt)
	}
	b.claim(0) // It reports its permits.
	time.Sleep(time.Duration(doubt) * time.Microsecond)
	if got, doubt := a.claim(5); got != 6 || doubt != 0 {
		t.Errorf("then %d permits, in doubt for %d: want 10 - 3 - 1", got, doubt)
	}
}

// serverTime is the time of a server.
func serverTime(t *testing.T, server *redistest.Server) quota.Instant {
	t.Helper()
	var seconds, micros quota.Instant
	if _, err := fmt.Sscan(server.Do("TIME"), &seconds, &micros); err != nil {
		t.Fatal(err)
	}
	return seconds*1e6 + micros
}

// doubted is for how long after a time a server has permits of lentBucket in doubt, whenever it is
// asked.
func doubted(t *testing.T, server *redistest.Server, lost quota.Instant) quota.Span {
	t.Helper()
	marker := server.Do("GET", fmt.Sprintf("weir:{%02x}:lent", lentBucket[0]))
	at, err := strconv.ParseInt(marker, 10, 64)
	if err != nil {
		t.Fatalf("the marker is %q: no permit is in doubt", marker)
	}
	return leases.GivenBackIn + quota.Span(quota.Instant(at)-lost)
}

// A control plane that has met more claims than it can remember, and remembers none by now, doubts
// all permits too.
func TestNoneOfMorePermitsThanAreRemembered(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var later atomic.Int64
	s := openURL(t, server.URL(), slog.New(slog.DiscardHandler), redisstore.Now(func() time.Time {
		return time.Now().Add(time.Duration(later.Load()))
	}))
	s.RememberLent(1)
	watch(t, s)
	a, b, c := &claims{t: t, s: s, node: "a"}, &claims{t: t, s: s, node: "b"}, &claims{t: t, s: s, node: "c"}
	const ttl = time.Duration(inflight.TTL) * time.Microsecond
	a.claim(1)
	later.Add(int64(ttl * 8 / 10))
	b.claim(3) // It is not remembered, and in Redis a moment old.
	later.Add(int64(ttl * 4 / 10))
	lost := serverTime(t, server)
	server.Do("FLUSHALL")
	watch(t, s)
	if got := doubted(t, server, lost); got < inflight.RenewedIn {
		t.Errorf("in doubt for %d after the loss, want %d", got, inflight.RenewedIn)
	}
	if got, doubt := c.claim(10); doubt > 0 && got != 0 {
		t.Errorf("%d permits while b may hold 3", got)
	}
}
