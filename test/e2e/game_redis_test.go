package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/dnstest"
	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

// nowhere is an address at which nothing listens.
const nowhere = "127.0.0.1:1"

// followTakes is in how many seconds all control planes follow the name of Redis, by
// docs/night/faults.md.
const followTakes = 6

// keptFiles are options of the game's Redis servers.
var keptFiles = []string{"--appendonly", "yes", "--appendfsync", "everysec"}

// startWatched starts a Redis with a replica and Sentinels.
func (f *fleet) startWatched() {
	f.t.Helper()
	primary, replica := redistest.NewDisk(f.t), redistest.NewDisk(f.t)
	f.sentinels = redistest.StartSentinelsOn(f.t, primary, replica, keptFiles...)
	f.redis = f.sentinels.Primary
	f.disks[f.sentinels.Primary], f.disks[f.sentinels.Replica] = primary, replica
	for i := range f.serves {
		f.serves[i] = f.serve
		f.serves[i].RedisURL = f.sentinels.URL()
	}
}

// startNamed starts one Redis, which control planes find by a name.
func (f *fleet) startNamed() {
	f.t.Helper()
	f.startRedis(redistest.NewDisk(f.t))
	f.redisNames.Answer(planesAt)
	program := dnstest.Build(f.t, repository)
	for i := range f.serves {
		f.toRedis[i] = startProxy(f.t, f.redis.Addr())
		f.elsewhere[i] = startProxyAt(f.t, movedTo, f.toRedis[i].port, nowhere)
		f.serves[i] = f.serve
		f.serves[i].Binary, f.serves[i].Env = program, f.redisNames.Env()
		f.serves[i].RedisURL = fmt.Sprintf("redis://redis.test.:%d/0", f.toRedis[i].port)
	}
}

// startRedis takes a new, empty Redis on a disk for the world's.
func (f *fleet) startRedis(disk *redistest.Disk) {
	f.t.Helper()
	f.dir = f.t.TempDir()
	f.redis = f.clock.StartOn(disk, append([]string{"--dir", f.dir}, keptFiles...)...)
	f.disks[f.redis] = disk
}

// drawDisk fills the disk of Redis, or makes it hang. With Sentinels it is the disk of the primary,
// which they replace then, or the disk of the replica.
func (f *fleet) drawDisk(r *rand.Rand, full bool) calamity {
	word := map[bool]string{true: "is full", false: "hangs"}[full]
	begin := func(s *redistest.Server) func() {
		if full {
			return f.disks[s].Fill
		}
		return f.disks[s].Hang
	}
	if f.sentinels == nil {
		return calamity{name: "the disk of Redis " + word, begin: begin(f.redis), end: f.disks[f.redis].Mend}
	}
	primary, replica := f.roles()
	end := func(s, follows *redistest.Server) func() {
		return func() {
			f.disks[s].Mend()
			if full { // A replica that cannot write its file ends itself.
				startAgain(s, follows)
			}
			f.awaitFollows()
		}
	}
	if r.IntN(2) == 0 {
		return f.takeover("whose disk "+word, begin(primary), end(primary, replica))
	}
	return calamity{name: "the disk of the replica " + word, begin: begin(replica), end: end(replica, primary)}
}

// startAgain starts a replica as its file of settings would have it, in which Sentinels write whom
// it follows. Without one they take ten seconds.
func startAgain(s, follows *redistest.Server) {
	s.Restart()
	s.Do(append([]string{"REPLICAOF"}, strings.Split(follows.Addr(), ":")...)...)
}

// settles is the time for which Sentinels choose no other primary after a failover. They connect to
// a server once a second at most, and with time-outs of half a second may replace a server for that
// alone.
const settles = 1500 * time.Millisecond

// awaitFollows waits until there are a primary, which stays, and a replica of it.
func (f *fleet) awaitFollows() {
	f.t.Helper()
	f.await("a replica to follow the primary", func(context.Context) error {
		before := f.elections()
		time.Sleep(settles)
		if after := f.elections(); after != before {
			return fmt.Errorf("%d elections, and %d before", after, before)
		}
		primary, replica := f.roles()
		if !primary.IsPrimary() || !strings.Contains(replica.Role(), "connected") {
			return fmt.Errorf("the primary says %s, the replica %s", primary.Role(), replica.Role())
		}
		return nil
	})
}

// awaitAgreed waits until all Sentinels take a server for the primary.
func (f *fleet) awaitAgreed(primary *redistest.Server) {
	f.t.Helper()
	f.await("Sentinels to agree", func(context.Context) error {
		for _, w := range f.sentinels.Watchers {
			at := strings.ReplaceAll(w.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", redistest.MasterName), "\n", ":")
			if at != primary.Addr() {
				return fmt.Errorf("one says %s, not %s", at, primary.Addr())
			}
		}
		time.Sleep(settles)
		return nil
	})
}

// elections returns the number of times that Sentinels have chosen a primary; 0 without Sentinels.
func (f *fleet) elections() int {
	f.t.Helper()
	if f.sentinels == nil {
		return 0
	}
	_, epoch, _ := strings.Cut(f.sentinels.Watchers[0].Do("SENTINEL", "MASTER", redistest.MasterName), "config-epoch\n")
	epoch, _, _ = strings.Cut(epoch, "\n")
	n, err := strconv.Atoi(epoch)
	if err != nil {
		f.t.Fatalf("the epoch of the Sentinels is %q: %v", epoch, err)
	}
	return n
}

// drawNames has names lead nowhere, or nothing answer for them.
func (f *fleet) drawNames(r *rand.Rand) calamity {
	_, at := f.redisAt()
	c := calamity{name: "names lead nowhere", begin: func() {
		f.names.Answer()
		f.redisNames.Answer()
	}, end: func() {
		f.names.Answer(planesAt)
		f.redisNames.Answer(at)
	}}
	if r.IntN(2) == 0 {
		c.name, c.begin = "no name server answers", func() {
			f.names.Silence()
			f.redisNames.Silence()
		}
	}
	return c
}

// redisAt returns the address to which the name of Redis does not lead, and the address to which it
// leads.
func (f *fleet) redisAt() (other, at string) {
	if f.sentinels != nil || strings.HasPrefix(f.toRedis[0].Listen, planesAt+":") {
		return movedTo, planesAt
	}
	return planesAt, movedTo
}

// drawRedisMove has the name of Redis lead to its other address: there is the same Redis, which the
// old one leads to no longer, or also; or there is an empty one while the old one goes on.
func (f *fleet) drawRedisMove(how int) calamity {
	old, left, disk := f.redis, f.toRedis, f.disks[f.redis]
	c := calamity{name: "Redis moves to another address"}
	leave := func() {
		for _, way := range left {
			way.sendTo(nowhere)
		}
	}
	lead := func() {
		to, _ := f.redisAt()
		for _, way := range f.elsewhere {
			way.sendTo(f.redis.Addr())
		}
		f.redisNames.Answer(to)
		f.toRedis, f.elsewhere = f.elsewhere, left
	}
	c.begin, c.end = func() { lead(); leave() }, func() { f.awaitLeft(left) }
	switch how {
	case 0:
		c.name, c.begin = "Redis gets another address, and keeps the old one for a while", lead
		c.end = func() { f.awaitLeft(left); leave() }
	case 1:
		c = calamity{name: "the name of Redis leads to an empty one, and the old one goes on", forget: true, both: true,
			lost: lostFill, again: followTakes, begin: func() {
				f.startRedis(disk)
				lead()
			}, end: func() {
				f.awaitLeft(left)
				leave()
				old.Kill()
			}}
	}
	return c
}

// awaitLeft waits until no control plane has a connection on ways to Redis.
func (f *fleet) awaitLeft(ways [2]*proxy) {
	f.t.Helper()
	f.await("control planes to follow the name of Redis", func(context.Context) error {
		for _, way := range ways {
			if n := connections(f.t, way.Listen); n > 0 {
				return fmt.Errorf("%d connections to %s", n, way.Listen)
			}
		}
		return nil
	})
}

// connections returns the number of this machine's connections to an address and port of its own.
func connections(t *testing.T, to string) int {
	t.Helper()
	at := netip.MustParseAddrPort(to)
	all, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	address := at.Addr().As4()
	const established = "01"
	return strings.Count(string(all), fmt.Sprintf(" %08X:%04X %s ", binary.NativeEndian.Uint32(address[:]), at.Port(),
		established))
}

func TestConnectionsToAnAddressAreCounted(t *testing.T) {
	way := startProxy(t, redistest.Start(t).Addr())
	await := func(want int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := stack.Await(ctx, "connections", func(context.Context) error {
			if n := connections(t, way.Listen); n != want {
				return fmt.Errorf("%d connections", n)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	await(0)
	conn, err := net.Dial("tcp", way.Listen)
	if err != nil {
		t.Fatal(err)
	}
	await(1)
	conn.Close()
	await(0)
}
