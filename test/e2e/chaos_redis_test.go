package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
)

// chaotic has one limit in two policies that behave differently in a failure.
const (
	chaoticBurst = 300
	chaoticRate  = 30
	chaotic      = `
version: weir/v1
policies:
  - name: shares
    match: {paths: [/shares]}
    partition: []
    limit: {quota: 300, window: 10s}
    mode: leased
    on_failure: {then: local}
  - name: denies
    match: {paths: [/denies]}
    partition: []
    limit: {quota: 300, window: 10s}
    mode: leased
    on_failure: {then: deny}
` + within
	// lostFill is the part of its burst with which a bucket starts whose state Redis has lost.
	lostFill = 0.5
)

// fault is something that happens to Redis.
type fault struct {
	name string
	// inflict returns at once; heal returns once Redis answers again.
	inflict, heal func()
	// ladder reports whether policies take the failure ladder meanwhile, loses whether Redis loses
	// its state.
	ladder, loses bool
	// forgets is how far back Redis may forget its answers.
	forgets time.Duration
	// happened returns an error if the fault was none.
	happened func() error
}

// endure lets the fault happen while both policies get more requests than their limit allows. No
// client may see anything but 200 and 429. The Envoys must enter the ladder, and leave it once
// Redis answers. And the limits must hold: exactly for the limit that refuses in a failure, and
// except for the shares, each a bucket of its own, for the other limit. The times of entering and
// leaving are logged here and tested in virtual time by test/wasm.
func (w *world) endure(f fault, rounds int) {
	w.t.Helper()
	shares, denies, callers := w.crowd("/shares", 100), w.crowd("/denies", 100), w.withinLimits(w.envoys...)
	time.Sleep(time.Second)
	before := w.measured(w.envoys[0])
	var away time.Duration
	var taken, recovered []time.Duration
	for range rounds {
		begin := time.Now()
		if f.ladder {
			taken = append(taken, w.awaitClimb(f.inflict).Round(time.Millisecond))
		} else {
			f.inflict()
		}
		time.Sleep(either(time.Second, 4*time.Second))
		f.heal()
		recovered = append(recovered, w.awaitGround().Round(time.Millisecond))
		away += time.Since(begin)
		time.Sleep(either(500*time.Millisecond, 3*time.Second))
	}
	w.t.Logf("%s: on the ladder after %v, recovered after %v", f.name, taken, recovered)
	noneRefused(w.t, f.name, callers)
	n := float64(rounds)
	extra := n * chaoticRate * f.forgets.Seconds()
	if f.loses {
		extra = n * lostFill * chaoticBurst
	}
	mustHold(w.t, f.name+", refusing", denies.end(), chaoticBurst, chaoticRate, extra, 0.1)
	// The tokens that the shares let through beyond the limit are paid back, perhaps for longer
	// than this fault and the next fault last: nothing need pass.
	mustHold(w.t, f.name+", by shares", shares.end(), chaoticBurst, chaoticRate,
		extra+n*chaoticBurst+chaoticRate*away.Seconds(), 0)
	d := difference(w.measured(w.envoys[0]), before)
	if f.ladder && (failedCalls(d) == 0 || d["decisions.by_share"] == 0 || d["decisions.by_failure_deny"] == 0) {
		w.t.Errorf("%s: the ladder decided nothing: %v", f.name, d)
	}
	if f.happened != nil {
		if err := f.happened(); err != nil {
			w.t.Errorf("%s did not happen: %v", f.name, err)
		}
	}
}

func startChaotic(t *testing.T, options ...string) *world {
	t.Helper()
	return startChaoticOn(t, redistest.Start(t, options...))
}

func startChaoticOn(t *testing.T, redis *redistest.Server) *world {
	t.Helper()
	w := startChaoticAt(t, redis.URL())
	w.redis = redis
	return w
}

func startChaoticAt(t *testing.T, url string) *world {
	t.Helper()
	w := start(t, setup{envoys: 2, alone: true})
	w.serve.RedisURL = url
	w.startControlPlane()
	w.awaitApplied(w.apply(chaotic))
	return w
}

func TestChaosRedisIsKilled(t *testing.T) {
	t.Parallel()
	t.Run("and comes back empty", func(t *testing.T) {
		w := startChaotic(t)
		kill := fault{name: "kill -9", inflict: w.redis.Kill, heal: w.redis.Restart, ladder: true, loses: true}
		w.endure(kill, either(3, 10))
	})
	t.Run("and remembers", func(t *testing.T) {
		w := startChaotic(t, "--appendonly", "yes", "--appendfsync", "everysec")
		// It is a new process: buckets that its file lacks may have been in use, so absent buckets
		// start half full. These buckets are there. A busy disk makes Redis write its file up to
		// two seconds late.
		kill := fault{name: "kill -9, appendonly", inflict: w.redis.Kill, heal: w.redis.Restart, ladder: true,
			forgets: 2 * time.Second}
		w.endure(kill, either(2, 10))
	})
}

// counted returns the number behind a name in a section of INFO.
func counted(s *redistest.Server, section, name string) (n int) {
	_, after, _ := strings.Cut(s.Do("INFO", section), name)
	fmt.Sscanf(after, "%d", &n)
	return n
}

// hasAnswered looks whether Redis has ever answered with an error of a kind.
func (w *world) hasAnswered(kind string) func() error {
	return func() error {
		if counted(w.redis, "errorstats", "errorstat_"+kind+":count=") == 0 {
			return fmt.Errorf("Redis has never answered %s", kind)
		}
		return nil
	}
}

func TestChaosRedisMisbehaves(t *testing.T) {
	t.Parallel()
	w := startChaotic(t, "--enable-debug-command", "yes")
	do := func(args ...string) func() {
		return func() {
			if got := w.redis.Do(args...); strings.HasPrefix(got, "-") {
				w.t.Fatalf("%v: %s", args, got)
			}
		}
	}
	none, answers := func() {}, do("PING") // PING is answered when the pause is over.
	pause := fmt.Sprint(either(1500, 5000))
	for _, f := range []fault{
		{name: "CLIENT PAUSE", inflict: do("CLIENT", "PAUSE", pause, "ALL"), heal: answers, ladder: true},
		{name: "DEBUG SLEEP", inflict: func() { go w.redis.Do("DEBUG", "SLEEP", "1.5") }, heal: answers, ladder: true},
		{name: "OOM", inflict: do("CONFIG", "SET", "maxmemory", "1"), heal: do("CONFIG", "SET", "maxmemory", "0"),
			ladder:   true,
			happened: w.hasAnswered("OOM")},
		{name: "SCRIPT FLUSH", inflict: do("SCRIPT", "FLUSH"), heal: none, happened: w.hasAnswered("NOSCRIPT")},
		{name: "CONFIG RESETSTAT", inflict: do("CONFIG", "RESETSTAT"), heal: none},
		{name: "FLUSHALL", inflict: do("FLUSHALL"), heal: none, loses: true, happened: func() error {
			if !strings.Contains(w.controlPlane.Stderr.String(), "Redis has lost the state of buckets") {
				return fmt.Errorf("the control plane's log does not tell of lost state")
			}
			return nil
		}},
	} {
		t.Run(f.name, func(t *testing.T) {
			outer := w.t
			w.t = t
			defer func() { w.t = outer }()
			w.endure(f, either(1, 4))
		})
	}
}

// The disk of a Redis that appends to a file is full: it takes no changes. The disk hangs: within
// two seconds Redis waits for it, and answers nothing. Nothing that it has answered is lost.
func TestChaosTheDiskOfRedis(t *testing.T) {
	t.Parallel()
	disk := redistest.NewDisk(t)
	w := startChaoticOn(t, disk.Start("--appendonly", "yes", "--appendfsync", "everysec"))
	w.endure(fault{name: "a full disk", ladder: true, inflict: disk.Fill, heal: func() {
		w.awaitStoreAway()
		a, err := w.controlPlane.Call(w.within(patience), http.MethodPut, "/v1/policyset",
			[]byte(strings.ReplaceAll(chaotic, "quota: 300", "quota: 301")), "If-Match", "*", "Content-Type",
			"application/yaml")
		const why = "Redis cannot write its file"
		if err != nil || a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), why) {
			t.Errorf("a policy set is answered %d %s %v, want %q", a.Status, a.Body, err, why)
		}
		disk.Mend()
	}, happened: w.hasAnswered("MISCONF")}, either(1, 4))
	w.endure(fault{name: "a disk that hangs", ladder: true, inflict: disk.Hang, heal: func() {
		w.awaitStoreAway()
		disk.Mend()
	}}, either(1, 4))
}

// Sentinels replace a primary whose disk is full, or hangs, and nothing that it has answered is
// lost, but for the last moment. A replica whose disk is full ends itself.
func TestChaosDisksUnderSentinels(t *testing.T) {
	t.Parallel()
	disks := [2]*redistest.Disk{redistest.NewDisk(t), redistest.NewDisk(t)}
	servers := redistest.StartSentinelsOn(t, disks[0], disks[1], keptFiles...)
	w := startChaoticAt(t, servers.URL())
	f := &fleet{world: w, sentinels: servers}
	w.endure(fault{name: "a replica's full disk", inflict: func() {
		disks[1].Fill()
		w.await("the replica to end", func(context.Context) error {
			conn, err := net.Dial("tcp", servers.Replica.Addr())
			if err != nil {
				return nil
			}
			conn.Close()
			return errors.New("it goes on")
		})
	}, heal: func() {
		disks[1].Mend()
		startAgain(servers.Replica, servers.Primary)
		f.awaitFollows()
	}}, 1)
	for name, fail := range map[string]func(*redistest.Disk){
		"is full": (*redistest.Disk).Fill, "hangs": (*redistest.Disk).Hang,
	} {
		from, to := f.roles()
		disk := disks[0]
		if from == servers.Replica {
			disk = disks[1]
		}
		c := f.takeover("whose disk "+name, func() { fail(disk) }, func() {
			disk.Mend()
			startAgain(from, to)
		})
		w.endure(fault{name: c.name, ladder: true, forgets: time.Second, inflict: c.begin, heal: c.end}, 1)
	}
}

// awaitStoreAway waits until the control plane reports that its store is away.
func (w *world) awaitStoreAway() {
	w.t.Helper()
	w.await("the control plane to tell of its store", func(ctx context.Context) error {
		return w.tellsOfStore(ctx, w.controlPlane)
	})
}
