package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/dnstest"
	"github.com/weir-proxy/weir/test/support/logtest"
	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

// fleet is a world with two control planes and a proxy on each way: from each Envoy to each control
// plane, and from each control plane to Redis.
type fleet struct {
	*world
	clock *redistest.Clock
	// disks are the disks of Redis servers.
	disks map[*redistest.Server]*redistest.Disk
	names *dnstest.Server // at which Envoys look up control planes
	// redisNames is where control planes look up Redis, but for Sentinels.
	redisNames *dnstest.Server
	planes     [2]*stack.ControlPlane
	serves     [2]stack.ControlPlaneOptions
	// toPlane are the ways of an Envoy, by its name.
	toPlane map[string][2]*proxy
	toRedis [2]*proxy
	// elsewhere are at the other address of Redis, and lead nowhere.
	elsewhere [2]*proxy
	// sentinels watch the Redis; nil: there are none, and proxies on the ways to it.
	sentinels *redistest.Sentinels
	off       time.Duration // of Redis' clock
	// envoyClock is the clock of envoy-1.
	envoyClock *redistest.Clock
	dir        string // of Redis' files
	kept       string // a copy of them
	slow       slowLines
}

// slowLines keeps lines of access logs about requests that took seconds.
type slowLines struct{ logtest.Buffer }

var tookSeconds = regexp.MustCompile(`(?m)^.* \d{4,}ms .*\n`)

// Write implements io.Writer.
func (s *slowLines) Write(p []byte) (int, error) {
	for _, line := range tookSeconds.FindAll(p, -1) {
		if _, err := s.Buffer.Write(line); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// calamity is a fault that the game draws.
type calamity struct {
	name string
	// forget is true if Redis may lose state: nothing else happens meanwhile, and nothing is
	// changed just before.
	forget bool
	// begin lets it happen, end makes it good again.
	begin, end func()
	// dies is 1 or 2 for the control plane that is killed, 3 for both.
	dies int
	// lost is the part of a burst that buckets get anew, again how many seconds of a rate.
	lost, again float64
	// restarts is how many Envoys begin anew.
	restarts float64
	// both says that two Redis servers grant at the same time.
	both bool
}

func (f *fleet) startPlane(i int) {
	f.t.Helper()
	c, err := stack.LaunchControlPlane(f.serves[i])
	if err != nil {
		f.t.Fatal(err)
	}
	f.planes[i] = c
	f.t.Cleanup(func() {
		c.Stop()
		f.show(c.Process)
	})
}

// awaitPlanes waits until each control plane reads its store, and makes one of them the world's
// control plane.
func (f *fleet) awaitPlanes() {
	f.t.Helper()
	for i, c := range f.planes {
		f.await(fmt.Sprintf("control plane %d to read its store", i), func(ctx context.Context) error {
			a, err := c.Call(ctx, http.MethodGet, "/readyz/store", nil)
			if err != nil || a.Status != http.StatusOK {
				return fmt.Errorf("%d %s %w", a.Status, a.Body, err)
			}
			return nil
		})
	}
	f.controlPlane = f.planes[0]
}

// startFleet starts all but policies, in front of a service. Watched: Sentinels watch the Redis,
// which has a replica.
func startFleet(t *testing.T, watched bool, service http.Handler) *fleet {
	t.Helper()
	f := &fleet{toPlane: map[string][2]*proxy{}, clock: redistest.NewClock(t),
		disks: map[*redistest.Server]*redistest.Disk{}, names: dnstest.Start(t), redisNames: dnstest.Start(t),
		envoyClock: redistest.NewClock(t)}
	f.names.Answer(planesAt)
	second, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	again := hot(t)
	launched := func(o *stack.EnvoyOptions) {
		again(o)
		rewrite := o.Rewrite
		o.Rewrite = func(config string) string { return named("STRICT_DNS", f.names)(rewrite(config)) }
		o.Out = &f.slow
		if o.NodeID == "envoy-1" {
			o.Env = f.envoyClock.Env()
		}
	}
	s := setup{envoys: 2, alone: true, launch: launched, handler: service}
	s.ways = func(envoy string, port int) []int {
		ways, known := f.toPlane[envoy]
		if !known {
			for i, at := range []int{port, second} {
				ways[i] = startProxy(t, fmt.Sprintf("127.0.0.1:%d", at))
			}
			f.toPlane[envoy] = ways
		}
		return []int{ways[0].port, ways[1].port}
	}
	f.world = start(t, s)
	if watched {
		f.startWatched()
	} else {
		f.startNamed()
	}
	for i, port := range []int{f.serve.Port, second} {
		f.serves[i].Port, f.serves[i].DataDir = port, t.TempDir()
		f.startPlane(i)
	}
	f.awaitPlanes()
	return f
}

// parted returns a fault that cuts some ways.
func parted(name string, h int, ways ...*proxy) calamity {
	return calamity{name: name + ": " + holds[h].name, begin: func() {
		for _, p := range ways {
			p.part(holds[h].streams)
		}
	}, end: func() {
		for _, p := range ways {
			p.heal()
		}
	}}
}

// bad returns a fault of a way that is slow or breaks.
func bad(name string, r *rand.Rand, way *proxy) calamity {
	toxic := []struct {
		kind string
		attributes
	}{
		{"latency", attributes{"latency": 100}}, {"latency", attributes{"latency": 20, "jitter": 15}},
		{"bandwidth", attributes{"rate": 1}}, {"reset_peer", attributes{"timeout": 0}},
		{"slow_close", attributes{"delay": 1000}},
	}[r.IntN(5)]
	return calamity{name: fmt.Sprint(name, ": ", toxic.kind, toxic.attributes),
		begin: func() { way.poison(toxic.kind, toxic.attributes) }, end: way.heal}
}

// keepData copies the files of Redis.
func (f *fleet) keepData() {
	f.t.Helper()
	f.kept = f.t.TempDir()
	if err := os.CopyFS(f.kept, os.DirFS(f.dir)); err != nil {
		f.t.Fatal(err)
	}
}

// goBack has Redis start from the copy.
func (f *fleet) goBack() {
	f.t.Helper()
	f.redis.Kill()
	err := os.RemoveAll(f.dir)
	if err == nil {
		err = os.CopyFS(f.dir, os.DirFS(f.kept))
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.redis.Restart()
}

// draw returns a fault of any kind.
func (f *fleet) draw(r *rand.Rand) calamity {
	p, e, h := r.IntN(2), r.IntN(2), r.IntN(len(holds))
	envoy := fmt.Sprint("envoy-", e+1)
	ways := f.toPlane[envoy]
	drawn := r.IntN(16)
	if f.sentinels != nil {
		f.redis, _ = f.roles()
		if slices.Contains([]int{0, 1, 2, 5}, drawn) {
			return f.drawTakeover(r.IntN(3))
		}
	}
	switch drawn {
	case 0, 1:
		return parted(fmt.Sprintf("control plane %d and Redis", p), h, f.toRedis[p])
	case 2:
		return parted("both control planes and Redis", h, f.toRedis[:]...)
	case 3:
		return parted(fmt.Sprintf("%s and control plane %d", envoy, p), h, ways[p])
	case 4:
		return parted(envoy+" and both control planes", h, ways[:]...)
	case 5:
		return bad(fmt.Sprintf("control plane %d and Redis", p), r, f.toRedis[p])
	case 6:
		return bad(fmt.Sprintf("%s and control plane %d", envoy, p), r, ways[p])
	default:
		return f.drawProcess(r, p, e)
	}
}

// drawTakeover makes the replica take over from a primary that is well, is killed or stands still.
func (f *fleet) drawTakeover(how int) calamity {
	primary, _ := f.roles()
	switch how {
	case 0:
		return f.takeover("that was killed", primary.Kill, primary.Restart)
	case 1:
		return f.takeover("that stands still", primary.Pause, primary.Resume)
	}
	return f.takeover("that is well", f.takeOver, func() {})
}

// roles returns the Redis servers that Sentinels watch.
func (f *fleet) roles() (primary, replica *redistest.Server) {
	f.t.Helper()
	if f.sentinels.Replica.IsPrimary() {
		return f.sentinels.Replica, f.sentinels.Primary
	}
	return f.sentinels.Primary, f.sentinels.Replica
}

// electedAgain is how many seconds of a rate are granted again where Sentinels choose a primary.
const electedAgain = 2

// takeover has something happen to a primary, which Sentinels replace then, and ends it.
func (f *fleet) takeover(which string, begin, end func()) calamity {
	_, to := f.roles()
	return calamity{name: "Sentinels replace a primary " + which, again: electedAgain, begin: begin, end: func() {
		f.awaitRole("the replica to take over", to, "master")
		f.awaitAgreed(to)
		end()
		f.awaitFollows()
	}}
}

// takeOver has Sentinels replace the primary.
func (f *fleet) takeOver() {
	f.t.Helper()
	f.await("Sentinels to replace the primary", func(context.Context) error {
		if answer := f.sentinels.Watchers[0].Do("SENTINEL", "FAILOVER", redistest.MasterName); answer != "+OK" {
			return errors.New(answer) // They know no good replica yet.
		}
		return nil
	})
}

func (f *fleet) awaitRole(what string, server *redistest.Server, word string) {
	f.t.Helper()
	f.await(what, func(context.Context) error {
		if role := server.Role(); !strings.Contains(role, word) {
			return errors.New(role)
		}
		return nil
	})
}

// planesAt is where control planes are for Envoys, and Redis for these, and movedTo where they are
// after a move.
const planesAt, movedTo = "127.0.0.1", "127.0.0.2"

// drawMove moves the control planes: their name leads to new addresses, and nothing listens at the
// old addresses. Later they move back.
func (f *fleet) drawMove() calamity {
	var moved []*proxy
	follow := func(to, from string, leave func()) {
		f.names.Answer(to)
		f.awaitAddress("to hear of "+to, to, true)
		leave()
		f.awaitAddress("to forget "+from, from, false)
	}
	return calamity{name: "control planes move to other addresses", begin: func() {
		for _, ways := range f.toPlane {
			for _, way := range ways {
				moved = append(moved, startProxyAt(f.t, movedTo, way.port, way.Upstream))
			}
		}
		follow(movedTo, planesAt, func() {
			for _, ways := range f.toPlane {
				for _, way := range ways {
					way.Stop()
				}
			}
		})
	}, end: func() {
		for _, ways := range f.toPlane {
			for _, way := range ways {
				if err := way.Start(); err != nil {
					f.t.Fatal(err)
				}
			}
		}
		follow(planesAt, movedTo, func() {
			for _, way := range moved {
				way.Stop()
			}
		})
	}}
}

// awaitAddress waits until each Envoy knows both control planes at an address and finds them well,
// or knows none there.
func (f *fleet) awaitAddress(what, address string, want bool) {
	f.t.Helper()
	f.await("Envoys "+what, func(ctx context.Context) error {
		for _, e := range f.envoys {
			text, err := e.Admin(ctx, "/clusters?filter=^weir$")
			if err != nil {
				return err
			}
			here := "weir::" + address + ":"
			all := strings.Count(string(text), here)
			well := len(regexp.MustCompile(regexp.QuoteMeta(here)+`\d+::health_flags::healthy\n`).FindAll(text, -1))
			if want && well < len(f.planes) || !want && all > 0 {
				return fmt.Errorf("%s: %s", e.Name, text)
			}
		}
		return nil
	})
}

// drawProcess returns a fault of a process.
func (f *fleet) drawProcess(r *rand.Rand, p, e int) calamity {
	signal := func(s syscall.Signal, to interface{ Signal(syscall.Signal) error }) {
		if err := to.Signal(s); err != nil {
			f.t.Error(err)
		}
	}
	drawn := r.IntN(19)
	if f.sentinels != nil && slices.Contains([]int{4, 5, 7, 11, 17}, drawn) {
		return f.drawTakeover(r.IntN(3))
	}
	switch drawn {
	case 13, 14:
		return f.drawDisk(r, drawn == 13)
	case 15:
		return f.drawNames(r)
	case 16:
		return f.drawMove()
	case 17, 18:
		if f.sentinels != nil {
			return f.drawDisk(r, r.IntN(2) == 0)
		}
		return f.drawRedisMove(r.IntN(3))
	case 12:
		off := []time.Duration{time.Hour, -time.Hour, 0}[r.IntN(3)]
		return calamity{name: fmt.Sprintf("the clock of envoy-1 jumps: to %v", off),
			begin: func() { f.envoyClock.Set(off) }, end: func() {}}
	case 10:
		most := func(bytes string) func() { return func() { f.redis.Do("CONFIG", "SET", "maxmemory", bytes) } }
		return calamity{name: "Redis is full", begin: most("1"), end: most("0")}
	case 11:
		return calamity{name: "Redis comes back as it was some seconds ago", forget: true, again: 5,
			begin: f.keepData, end: f.goBack}
	case 0:
		return calamity{name: fmt.Sprintf("control plane %d is killed", p), dies: p + 1, begin: f.planes[p].Kill,
			end: func() { f.startPlane(p) }}
	case 1:
		return calamity{name: fmt.Sprintf("control plane %d is replaced", p), dies: p + 1, begin: func() {
			f.planes[p].Stop()
			f.startPlane(p)
		}, end: func() {}}
	case 2:
		return calamity{name: "both control planes are killed", dies: 3, begin: func() {
			f.planes[0].Kill()
			f.planes[1].Kill()
		}, end: func() {
			f.startPlane(0)
			f.startPlane(1)
		}}
	case 3:
		still := f.planes[p]
		return calamity{name: fmt.Sprintf("control plane %d stands still", p),
			begin: func() { signal(syscall.SIGSTOP, still) }, end: func() { signal(syscall.SIGCONT, still) }}
	case 4:
		return calamity{name: "Redis stands still", begin: f.redis.Pause, end: f.redis.Resume}
	case 5:
		return calamity{name: "Redis is killed", forget: true, again: 2, begin: f.redis.Kill,
			end: f.redis.Restart}
	case 6:
		return calamity{name: "Redis is emptied", forget: true, lost: lostFill, again: 1,
			begin: func() { f.redis.Do("FLUSHALL") }, end: func() {}}
	case 7:
		f.off = []time.Duration{time.Hour, -time.Hour, 0}[r.IntN(3)]
		return calamity{name: fmt.Sprintf("Redis' clock jumps: to %v", f.off), forget: true, lost: 1,
			begin: func() { f.clock.Set(f.off) }, end: func() {}}
	case 8:
		still := f.envoys[e]
		return calamity{name: still.Name + " stands still",
			begin: func() { signal(syscall.SIGSTOP, still) }, end: func() { signal(syscall.SIGCONT, still) }}
	default:
		return calamity{name: f.envoys[e].Name + " is restarted hot", restarts: 1, begin: func() { f.hotRestart(e) },
			end: func() {}}
	}
}
