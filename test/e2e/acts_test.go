package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// actQuota is the number of requests that each policy of the acts allows within a time in which no
// token comes back.
const actQuota = 10

// actPatience bounds the wait for an effect, on a machine that has much else to do. The time that
// it takes is in the log.
const actPatience = 20 * time.Second

// inFlight is in place of the algorithm of a policy that limits requests in flight.
const inFlight = "in_flight"

// actPolicy is a mode with an algorithm, which has a policy and a path of that name.
type actPolicy struct{ mode, algorithm string }

func (p actPolicy) name() string { return p.mode + "-" + strings.ReplaceAll(p.algorithm, "_", "-") }

// actPolicies returns a policy for each mode and each of its algorithms.
func actPolicies() (all []actPolicy) {
	for _, a := range []string{
		"token_bucket", "fixed_window", "sliding_window", "sliding_log", "sliding_window_counter", "leaky_bucket",
	} {
		all = append(all, actPolicy{"local", a}, actPolicy{"strict", a})
		if a != "sliding_window_counter" && a != "leaky_bucket" {
			all = append(all, actPolicy{"leased", a})
		}
	}
	return append(all, actPolicy{"optimistic", "token_bucket"})
}

// actSet returns a policy set of such policies.
func actSet(policies []actPolicy, enforcement string) string {
	text := "version: weir/v1\ntiers: [free, gold]\n" +
		"identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}\npolicies:\n"
	for _, p := range policies {
		more, algorithm, limit := "", "algorithm: "+p.algorithm, fmt.Sprintf("{quota: %d, window: 365d}", actQuota)
		if p.algorithm == inFlight {
			algorithm, limit = "max_hold: 10m", "{in_flight: 1}"
		}
		if p.mode != "local" { // A busy machine lets nothing pass.
			more = ", on_failure: [deny]"
		}
		text += fmt.Sprintf("  - {name: %s, match: {paths: [/%[1]s, /%[1]s/held]}, partition: [consumer], mode: %s, "+
			"%s, enforcement: %s, limits: {free: %s, gold: unlimited}%s}\n",
			p.name(), p.mode, algorithm, enforcement, limit, more)
	}
	return text
}

// caller is a consumer of a policy, which comes by a door of its own.
type caller struct {
	actPolicy
	door, id string
	envoy    *stack.Envoy
	// drain is the Envoy by which the bucket is used up: one whose door knows all that was used.
	drain *stack.Envoy
}

// asks sends a request by a door and reports whether it passed. It is an error if that says nothing
// of the limit.
func (c *caller) asks(ctx context.Context, e *stack.Envoy) (passed bool, err error) {
	r := request(http.MethodGet, e.URL()+"/"+c.name(), "x-api-key", c.id)
	a, err := send(http.DefaultClient, r.WithContext(ctx))
	switch {
	case err != nil:
		return false, err
	case strings.Contains(a.body, "#temporary-reduced-capacity"):
		return false, errors.New("it is refused for want of an answer")
	case a.status != http.StatusOK && a.status != http.StatusTooManyRequests && a.status != http.StatusForbidden:
		return false, fmt.Errorf("the status is %d", a.status)
	}
	return a.status == http.StatusOK, nil
}

// awaits sends requests until one passes, or is refused.
func (c *caller) awaits(ctx context.Context, passes bool) error {
	what := fmt.Sprintf("%s to have a request pass: %t", c.id, passes)
	return stack.Await(ctx, what, func(ctx context.Context) error {
		got, err := c.asks(ctx, c.envoy)
		if err == nil && got != passes {
			err = fmt.Errorf("passed: %t", got)
		}
		return err
	})
}

// drains sends requests until the limit refuses a request, and returns how many have passed.
func (c *caller) drains(ctx context.Context) (n int, err error) {
	err = stack.Await(ctx, c.id+" to be refused", func(ctx context.Context) error {
		for ; n <= 10*actQuota; n++ {
			if passed, err := c.asks(ctx, c.drain); err != nil || !passed {
				return err
			}
		}
		return nil
	})
	return n, err
}

// actWorld has a door of each kind, and their callers.
type actWorld struct {
	*world
	callers []*caller
}

// served reports whether a door counts the requests of a policy: docs/integrate/rls.md.
func served(door string, p actPolicy) bool {
	return door == "filter" || p.mode != "local" && p.algorithm != "leaky_bucket"
}

func startActs(t *testing.T) *actWorld {
	t.Helper()
	calls, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, setup{
		env: []string{fmt.Sprintf("WEIR_RLS_LISTEN=127.0.0.1:%d", calls)}, policies: actSet(actPolicies(), "enforce"),
	})
	doors := map[string]*stack.Envoy{"filter": w.envoys[0]}
	w.rewrite = func(string) string { return callsConfig(t, w.upstream.Port, calls) }
	w.startEnvoy("calls-1")
	doors["rls"] = w.envoys[1]
	a := &actWorld{world: w}
	for _, door := range slices.Sorted(maps.Keys(doors)) {
		for _, p := range actPolicies() {
			if served(door, p) {
				a.callers = append(a.callers, &caller{p, door, door + "-" + p.name(), doors[door], doors[door]})
			}
		}
	}
	return a
}

// weir runs a command against the control plane.
func (w *actWorld) weir(args string) (string, error) {
	command := exec.Command(controlPlanePath, strings.Fields(args)...)
	command.Env = append(command.Environ(), "WEIR_SERVER="+w.controlPlane.URL(), "WEIR_TOKEN="+adminToken)
	output, err := command.CombinedOutput()
	return string(output), err
}

// each calls a function for each caller, four at a time.
func (w *actWorld) each(do func(*caller) error) {
	w.t.Helper()
	var wait sync.WaitGroup
	slots := make(chan struct{}, 4)
	for _, c := range w.callers {
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := do(c); err != nil {
				w.t.Errorf("%s: %v", c.id, err)
			}
		})
	}
	wait.Wait()
}

// step is a command, and whether requests pass after it.
type step struct {
	// one is the command for a caller, all that for all of them at once.
	one    func(*caller) string
	all    string
	passes bool
	// tokens is how many requests may pass then, if not 0. The bucket is drained again.
	tokens int
	// refuses is why the command refuses to do it, if so. It changes nothing then.
	refuses func(*caller) string
}

// Every act of an operator has the effect that its command names, at each door, in every mode and
// with every algorithm, and is taken back. Otherwise the command refuses it.
func TestEachActDoesWhatItSaysAtEachDoor(t *testing.T) {
	t.Parallel()
	w := startActs(t)
	w.each(func(c *caller) error {
		n, err := c.drains(w.within(actPatience))
		if err == nil {
			err = c.awaits(w.within(actPatience), false)
		}
		if n > actQuota || n == 0 {
			t.Errorf("%s: %d of %d have passed", c.id, n, actQuota)
		}
		return err
	})
	w.take(step{one: keyAct("grant", "--tokens 2 --reason outage -o json"), passes: true, tokens: 2, refuses: isLocal})
	w.take(step{one: keyAct("reset", "--reason fixed -o json"), passes: true, tokens: actQuota})
	for _, s := range w.acts(actPolicies()) {
		w.take(s)
	}
}

// keyAct returns the command that does something to the key of a caller.
func keyAct(act, more string) func(*caller) string {
	return func(c *caller) string { return "keys " + act + " " + c.name() + " " + c.id + " " + more }
}

// acts returns all acts that let a refused caller's requests pass, and take that back.
func (w *actWorld) acts(policies []actPolicy) []step {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "shadow.yaml")
	if err := os.WriteFile(file, []byte(actSet(policies, "shadow")), 0o600); err != nil {
		w.t.Fatal(err)
	}
	consumers := func(act, more string) func(*caller) string {
		return func(c *caller) string { return "consumers " + act + " " + c.id + " " + more }
	}
	override := func(limit string) func(*caller) string {
		return func(c *caller) string {
			if c.algorithm == "leaky_bucket" && limit != "none" {
				limit = "unlimited" // Another rate moves no turn to now.
			}
			return "consumers override " + c.id + " " + c.name() + " " + limit
		}
	}
	flies := func(why string) func(*caller) string {
		return func(c *caller) string {
			if c.algorithm == inFlight {
				return why
			}
			return ""
		}
	}
	return []step{
		{one: override("200/365d"), passes: true, refuses: flies("its limit is the same for all")},
		{one: override("none"), refuses: flies("has no limit of its own")},
		{one: consumers("set", "gold"), passes: true}, {one: consumers("set", "free")},
		{one: consumers("bypass", ""), passes: true},
		{one: consumers("ban", "")}, {one: consumers("unban", ""), passes: true},
		{one: keyAct("ban", "--reason abuse")}, {one: keyAct("unban", ""), passes: true},
		{one: consumers("bypass", "--off")},
		{all: "enforcement set off --reason off", passes: true}, {all: "enforcement lift"},
		{all: "enforcement set shadow --reason shadow", passes: true}, {all: "enforcement lift"},
		{all: "apply " + file, passes: true},
		{all: "enforcement set enforce --reason now"}, {all: "enforcement lift", passes: true},
		{all: "rollback 1"},
	}
}

// isLocal returns why nothing can be granted to a local policy.
func isLocal(c *caller) string {
	if c.mode == "local" {
		return "the buckets of a local policy are in each Envoy alone"
	}
	return ""
}

// take takes a step. The command has the effect that it names at each door, or says that it has
// not.
func (w *actWorld) take(s step) {
	w.t.Helper()
	begin, slowest := time.Now(), map[string]effect{}
	command := s.all
	if s.all == "" {
		command = s.one(w.callers[0])
	} else if said, err := w.weir(s.all); err != nil {
		w.t.Fatalf("weir %s: %v %s", s.all, err, said)
	}
	answered := time.Now()
	var mu sync.Mutex
	w.each(func(c *caller) error {
		since := answered
		if s.all == "" {
			if done, err := w.takeOne(s, c); !done || err != nil {
				return err
			}
			since = time.Now()
		}
		if err := c.awaits(w.within(actPatience), s.passes); err != nil {
			return fmt.Errorf("after weir %s: %w", cmp.Or(s.all, command), err)
		}
		mu.Lock()
		if e := (effect{time.Since(since), c.name()}); e.after > slowest[c.door].after {
			slowest[c.door] = e
		}
		mu.Unlock()
		return w.drainAgain(s, c)
	})
	text := ""
	for _, door := range slices.Sorted(maps.Keys(slowest)) {
		e := slowest[door]
		text += fmt.Sprintf("; %s after %d ms (%s)", door, e.after.Milliseconds(), e.policy)
		if e.after > promptly {
			text += ", NOT within two seconds"
		}
	}
	w.t.Logf("weir %s: requests pass: %t%s; %d ms in all", command, s.passes, text, time.Since(begin).Milliseconds())
}

// effect is how long after its command an act had an effect, where it took the longest.
type effect struct {
	after  time.Duration
	policy string
}

// takeOne runs the command for a caller, and reports whether it has done something.
func (w *actWorld) takeOne(s step, c *caller) (done bool, err error) {
	said, err := w.weir(s.one(c))
	if s.refuses != nil && s.refuses(c) != "" {
		if err == nil || !strings.Contains(said, s.refuses(c)) {
			return false, fmt.Errorf("weir %s: %v %s, want a refusal: %s", s.one(c), err, said, s.refuses(c))
		}
		return false, c.awaits(w.within(actPatience), false)
	}
	if err != nil {
		return false, fmt.Errorf("weir %s: %w %s", s.one(c), err, said)
	}
	if s.tokens == 0 || c.mode == "local" {
		return true, nil
	}
	var k held
	if err := json.Unmarshal([]byte(said), &k); err != nil {
		return false, fmt.Errorf("weir %s: %w %s", s.one(c), err, said)
	}
	if len(k.Buckets) != 1 || k.Buckets[0].Given < 1 || k.Buckets[0].Given > int64(s.tokens) {
		return false, fmt.Errorf("weir %s gave %+v", s.one(c), k)
	}
	return true, nil
}

// drainAgain uses up the tokens of a step: one request has passed, and the rest of the tokens are
// all that is left.
func (w *actWorld) drainAgain(s step, c *caller) error {
	if s.tokens == 0 {
		return nil
	}
	n, err := c.drains(w.within(actPatience))
	if n++; err == nil && n > s.tokens {
		err = fmt.Errorf("after weir %s %d have passed, want at most %d", s.one(c), n, s.tokens)
	}
	if err == nil {
		err = c.awaits(w.within(actPatience), false)
	}
	return err
}
