// Package million measures a control plane on a Redis that knows very many consumers and policies.
// `make million` runs it in full.
package million

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

var full = flag.Bool("full", false,
	"a million consumers and ten thousand policies, instead of enough to show that it works")

// patience bounds one request. It is no promise, but a request that takes longer shows a defect.
const patience = 20 * time.Second

const batch = 1000

// plane is a control plane on a Redis, with the measurements of both.
type plane struct {
	t       *testing.T
	control *stack.ControlPlane
	redis   *redistest.Server
}

func start(t *testing.T) *plane {
	t.Helper()
	binary, err := filepath.Abs("../../../build/weir")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("run make build first: %v", err)
	}
	server := redistest.Start(t)
	port, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	control, err := stack.StartControlPlane(t.Context(), stack.ControlPlaneOptions{
		Binary: binary, Port: port, DataDir: t.TempDir(), AdminToken: "the-administrator-of-the-tests",
		NodeToken: "the-envoys-of-the-tests", RedisURL: server.URL(),
		Env: []string{"WEIR_NODE_RATE=0", "WEIR_MAX_CONNECTIONS=8192"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if control.Stop(); t.Failed() {
			t.Logf("the control plane wrote at last:\n%s", control.Stderr.Tail(20))
		}
	})
	return &plane{t, control, server}
}

// call sends a request and returns how long the answer took.
func (p *plane) call(method, path, body string) time.Duration {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	begin := time.Now()
	answer, err := p.control.Call(ctx, method, path, []byte(body), "If-Match", "*")
	if err != nil || answer.Status != http.StatusOK {
		p.t.Fatalf("%s %s: %v %d %s", method, path, err, answer.Status, answer.Body[:min(len(answer.Body), 500)])
	}
	return time.Since(begin)
}

// memory returns the memory that Redis uses, in bytes.
func (p *plane) memory() int64 {
	p.t.Helper()
	info := p.redis.Do("INFO", "memory")
	for line := range strings.Lines(info) {
		if text, ok := strings.CutPrefix(line, "used_memory:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil {
				p.t.Fatal(err)
			}
			return n
		}
	}
	p.t.Fatal("INFO says nothing of memory")
	return 0
}

// fill puts consumers, each as one says, and returns how long it took.
func (p *plane) fill(count int, one func(i int) string) time.Duration {
	p.t.Helper()
	begin := time.Now()
	for from := 0; from < count; from += batch {
		var items []string
		for i := from; i < min(from+batch, count); i++ {
			items = append(items, one(i))
		}
		p.call(http.MethodPost, "/v1/consumers", `{"consumers": [`+strings.Join(items, ",")+`]}`)
	}
	return time.Since(begin)
}

func (p *plane) report(what string, took []time.Duration) {
	slices.Sort(took)
	p.t.Logf("%s: %s at the median, %s at most, of %d", what, took[len(took)/2].Round(10*time.Microsecond),
		took[len(took)-1].Round(10*time.Microsecond), len(took))
}

func TestManyConsumersAndPolicies(t *testing.T) {
	consumers, policies := 5000, 500
	if *full {
		consumers, policies = 1_000_000, 10_000
	}
	p := start(t)
	var set strings.Builder
	set.WriteString("version: weir/v1\ntiers: [free, gold]\n" +
		"identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}\npolicies:\n")
	for i := range policies {
		fmt.Fprintf(&set, "- {name: p%d, partition: [consumer], limit: {quota: 100, window: 1m}}\n", i)
	}
	t.Logf("PUT of %d policies: %s", policies, p.call(http.MethodPut, "/v1/policyset", set.String()))

	before := p.memory()
	took := p.fill(consumers, func(i int) string { return fmt.Sprintf(`{"id": "customer-%d", "tier": "gold"}`, i) })
	t.Logf("%d consumers with a tier: %.0f a second, %d bytes of Redis each", consumers,
		float64(consumers)/took.Seconds(), (p.memory()-before)/int64(consumers))
	before = p.memory()
	special := consumers / 10
	took = p.fill(special, func(i int) string {
		return fmt.Sprintf(`{"id": "partner-%d", "tier": "gold", "overrides": [{"policy": "p%d", "limit": {"quota": 500, "window": "1m"}, "reason": "contract"}]}`, i, i%policies)
	})
	t.Logf("%d consumers with a limit of their own: %.0f a second, %d bytes each", special,
		float64(special)/took.Seconds(), (p.memory()-before)/int64(special))

	var policy, consumer, read []time.Duration
	for i := range 25 {
		policy = append(policy, p.call(http.MethodPut, fmt.Sprintf("/v1/policies/p%d", i), fmt.Sprintf(`{"partition": ["consumer"], "limit": {"quota": %d, "window": "1m"}}`, 200+i)))
		consumer = append(consumer, p.call(http.MethodPut, fmt.Sprintf("/v1/consumers/customer-%d", i), `{"banned": {}}`))
		read = append(read, p.call(http.MethodGet, fmt.Sprintf("/v1/consumers/customer-%d", i), ""))
	}
	p.report("PUT of one policy", policy)
	p.report("PUT of one consumer", consumer)
	p.report("GET of one consumer", read)
	if slowest := slices.Max(policy); slowest > patience/4 {
		t.Errorf("PUT of one policy took %s", slowest)
	}
}
