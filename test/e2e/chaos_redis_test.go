package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/redistest"
)

// chaotic has one limit in two policies that differ in what becomes of it in a failure.
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
	// forgets is how much of what it has answered last Redis may not remember.
	forgets time.Duration
	// happened returns an error if the fault was none.
	happened func() error
}

// endure lets the fault happen while both policies have more to do than their limit allows. No
// client may see anything but 200 and 429; the ladder must be taken, and left once Redis answers;
// and the limits hold: the one that refuses in a failure exactly, the other but for the shares,
// each of which is a bucket of its own. How soon it is taken and left is logged here and held in
// virtual time, by test/wasm.
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
	// What the shares let through beyond the limit is paid back, perhaps for longer than this fault
	// and the next one last: nothing need pass.
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
	w := start(t, setup{envoys: 2, alone: true})
	w.redis = redistest.Start(t, options...)
	w.serve.RedisURL = w.redis.URL()
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
		// It is another process: what its file lacks may have been in use, so absent buckets start
		// half full. These are there.
		// A busy disk has Redis write its file up to two seconds late.
		kill := fault{name: "kill -9, appendonly", inflict: w.redis.Kill, heal: w.redis.Restart, ladder: true,
			forgets: 2 * time.Second}
		w.endure(kill, either(2, 10))
	})
}

// counted is the number behind a name in what INFO says of a section.
func counted(s *redistest.Server, section, name string) (n int) {
	_, after, _ := strings.Cut(s.Do("INFO", section), name)
	fmt.Sscanf(after, "%d", &n)
	return n
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
	errors := func(code string) func() error {
		return func() error {
			if counted(w.redis, "errorstats", "errorstat_"+code+":count=") == 0 {
				return fmt.Errorf("Redis has never answered %s", code)
			}
			return nil
		}
	}
	pause := fmt.Sprint(either(1500, 5000))
	for _, f := range []fault{
		{name: "CLIENT PAUSE", inflict: do("CLIENT", "PAUSE", pause, "ALL"), heal: answers, ladder: true},
		{name: "DEBUG SLEEP", inflict: func() { go w.redis.Do("DEBUG", "SLEEP", "1.5") }, heal: answers, ladder: true},
		{name: "OOM", inflict: do("CONFIG", "SET", "maxmemory", "1"), heal: do("CONFIG", "SET", "maxmemory", "0"),
			ladder:   true,
			happened: errors("OOM")},
		{name: "SCRIPT FLUSH", inflict: do("SCRIPT", "FLUSH"), heal: none, happened: errors("NOSCRIPT")},
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
