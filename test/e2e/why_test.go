package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// apiKey is a caller's secret: it is nowhere but in its requests.
const apiKey = "the-secret-key-of-alice"

const whyPolicies = `
version: weir/v1
show: [path, "header:x-app"]
tiers: [free, premium]
identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}
policies:
  - {name: cheap, match: {paths: [/cheap]}, partition: [consumer], limits: {free: {quota: 2, window: 1h}, premium: unlimited}}
  - {name: near, match: {paths: [/near]}, partition: [consumer], limit: {quota: 3, window: 1h}, mode: local}
  - {name: address, match: {paths: [/address]}, partition: [client_ip, method], limit: [{quota: 9, window: 1s}, {quota: 4, window: 1h}]}
`

// run runs a command of weir against the control plane and returns its output.
func (w *world) run(args ...string) string {
	w.t.Helper()
	command := exec.Command(controlPlanePath, args...)
	command.Env = append(command.Environ(), "WEIR_SERVER="+w.controlPlane.URL(), "WEIR_TOKEN="+adminToken)
	output, err := command.CombinedOutput()
	if err != nil {
		w.t.Fatalf("weir %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return string(output)
}

// An operator can learn within two seconds why a caller was refused: by which policy, in which
// tier, by which source and until when. The heaviest callers are known too. And the caller's API
// key is nowhere: not in Redis, logs, metrics or answers.
func TestWhyARequestWasRefused(t *testing.T) {
	t.Parallel()
	w := start(t, setup{workers: 2, policies: whyPolicies})
	e := w.envoys[0]
	for path, allowed := range map[string]int64{"/cheap": 2, "/near": 3, "/address": 4} {
		got := load{clients: 1, total: 8, request: func(int) *http.Request {
			return request(http.MethodGet, e.URL()+path+"?key="+apiKey, "x-api-key", apiKey, "x-app", "shop")
		}}.run(w.ctx)
		if got.statuses[200] != allowed || got.statuses[429] != 8-allowed {
			t.Fatalf("%s: %s", path, got)
		}
	}
	refused := time.Now()
	for who, want := range map[string][]string{
		apiKey + " --policy cheap": {"refused by policy cheap", "on envoy-1: the quota was used up",
			"limit    2 per 1h, the limit of the tier free (version 1)", "mode leased",
			"tokens   0 then, for a cost of 1; 0 of 2 now", "header:x-app=shop path=/cheap"},
		apiKey + " --policy near": {"refused by policy near",
			"limit    3 per 1h, the policy's limit (version 1)", "decided  by the node's own bucket; mode local",
			"0 then", "path=/near"},
		"--policy address method:GET client_ip:127.0.0.1": {"refused by policy address",
			"limit    4 per 1h, the policy's limit (version 1)", "0 of 4 now"},
	} {
		w.await("why", func(context.Context) error {
			said := w.run(append([]string{"why"}, strings.Fields(who)...)...)
			for _, part := range want {
				if !strings.Contains(said, part) {
					return fmt.Errorf("it lacks %q:\n%s", part, said)
				}
			}
			if strings.Contains(said, apiKey) {
				t.Errorf("it shows the API key:\n%s", said)
			}
			return nil
		})
	}
	mustTake(t, "to know why", refused, time.Now(), 2*time.Second)
	var page struct {
		Decisions []struct {
			Policy, Tier, Reason, Source, From, Consumer string
			Ends                                         time.Time
		}
	}
	if err := json.Unmarshal(w.get("/v1/decisions?policy=cheap").Body, &page); err != nil || len(page.Decisions) == 0 {
		t.Fatalf("decisions: %v %+v", err, page)
	}
	if d := page.Decisions[0]; d.Tier != "free" || d.Reason != "quota" || d.From != "tier" || d.Consumer == "" ||
		time.Until(d.Ends) < 20*time.Minute {
		t.Errorf("%+v", d)
	}
	if said := w.run("why", "nobody"); !strings.Contains(said, "no refusal of this caller is known") {
		t.Error(said)
	}
	w.await("the heaviest callers", func(context.Context) error {
		if said := w.run("top", "--policy", "near"); !strings.Contains(said, "5 refused in all") ||
			!strings.Contains(said, page.Decisions[0].Consumer) {
			return fmt.Errorf("weir top says\n%s", said)
		}
		if text := string(w.get("/metrics").Body); !strings.Contains(text, `weir_refused_total{policy="near",tier="all"} 5`) {
			return errors.New("the metrics do not count the refusals of near")
		}
		return nil
	})
	w.knowsNothingOf(apiKey, e)
}

// Requests that a ban refuses are seen wherever refusals are: first in why, in top, in the series,
// in the metrics, and by the caller itself.
func TestWhatABanRefusesIsSeen(t *testing.T) {
	t.Parallel()
	w := start(t, setup{workers: 2, policies: whyPolicies})
	e := w.envoys[0]
	w.run("consumers", "ban", apiKey, "--reason", "leaked", "--for", "10m")
	w.await("the ban", func(context.Context) error {
		if got := w.ask(e, "/cheap", apiKey); got != http.StatusForbidden {
			return fmt.Errorf("a banned caller gets %d", got)
		}
		return nil
	})
	got := load{clients: 2, total: 40, request: func(int) *http.Request {
		return request(http.MethodGet, e.URL()+"/cheap", "x-api-key", apiKey, "x-app", "shop")
	}}.run(w.ctx)
	if got.statuses[403] != 40 {
		t.Fatal(got.String())
	}
	counted := regexp.MustCompile(`weir_refused_total\{policy="\(banned\)",tier="all"\} (\d+)`)
	w.await("the counts", func(context.Context) error {
		found := counted.FindStringSubmatch(string(w.get("/metrics").Body))
		if found == nil {
			return errors.New("the metrics do not count the refusals of the ban")
		}
		if n, _ := strconv.Atoi(found[1]); n < 41 {
			return fmt.Errorf("the metrics count %d", n)
		}
		for command, part := range map[string]string{
			"top": " refused in all", "top --policy (banned)": "(banned)", "series (banned)": "(banned)",
			"why " + apiKey: "refused by a ban at",
		} {
			said := w.run(strings.Fields(command)...)
			if !strings.Contains(said, part) || strings.Contains(said, " 0 refused") {
				return fmt.Errorf("weir %s says\n%s", command, said)
			}
		}
		return nil
	})
	if said := w.run("why", apiKey); !strings.HasPrefix(said, "BANNED until 20") || !strings.Contains(said, "leaked") ||
		!strings.Contains(said, "ban_of_consumer") || !strings.Contains(said, "path=/cheap") {
		t.Errorf("why says\n%s", said)
	}
	if said := w.run("usage", "--header", "x-api-key", apiKey); !strings.HasPrefix(said, "BANNED until 20") {
		t.Errorf("usage says\n%s", said)
	}
	w.knowsNothingOf(apiKey, e)
}

// Requests that a ban of a partition key refuses are seen under the hash of that key, as the list
// of bans has it, also where one asks by the key.
func TestWhatABanOfAKeyRefusesIsSeen(t *testing.T) {
	t.Parallel()
	w := start(t, setup{policies: whyPolicies})
	e := w.envoys[0]
	w.run("keys", "ban", "cheap", "consumer:bob", "--reason", "floods")
	w.await("the ban", func(context.Context) error {
		if got := w.ask(e, "/cheap", "bob"); got != http.StatusForbidden {
			return fmt.Errorf("a banned key gets %d", got)
		}
		return nil
	})
	bans := w.run("get", "bans")
	hash := regexp.MustCompile(`\b[0-9a-f]{32}\b`).FindString(bans)
	if hash == "" || strings.Trim(hash, "0") == "" {
		t.Fatalf("weir get bans has no key:\n%s", bans)
	}
	w.await("the refusals of the key", func(context.Context) error {
		for command, part := range map[string]string{
			"top": hash, "top --policy (banned)": hash, "why bob": "ban_of_key",
			"why --policy cheap consumer:bob": "ban_of_key", "why --policy cheap consumer:bob -o json": `"key":"` + hash,
		} {
			said := w.run(strings.Fields(command)...)
			if !strings.Contains(said, part) || strings.Contains(said, strings.Repeat("0", 32)) {
				return fmt.Errorf("weir %s lacks %s:\n%s", command, part, said)
			}
		}
		return nil
	})
	if said := w.run("why", "--policy", "cheap", "consumer:alice"); strings.Contains(said, "ban_of_key") {
		t.Errorf("another key:\n%s", said)
	}
}

// ask returns the status of a request with a key.
func (w *world) ask(e *stack.Envoy, path, key string) int {
	w.t.Helper()
	got := load{clients: 1, total: 1, request: func(int) *http.Request {
		return request(http.MethodGet, e.URL()+path, "x-api-key", key)
	}}.run(w.ctx)
	for status, n := range got.statuses {
		if n > 0 {
			return status
		}
	}
	return 0
}

// knowsNothingOf searches everything that the processes hold or have written for a secret.
func (w *world) knowsNothingOf(secret string, e *stack.Envoy) {
	w.t.Helper()
	stats, err := e.Admin(w.ctx, "/stats")
	if err != nil {
		w.t.Fatal(err)
	}
	held := map[string]string{
		"the control plane's log": w.controlPlane.Stderr.String() + w.controlPlane.Stdout.String(),
		"the metrics":             string(w.get("/metrics").Body),
		"Envoy's metrics":         string(stats), "the audit": string(w.get("/v1/audit").Body),
		"decisions":        string(w.get("/v1/decisions").Body),
		"the log of Envoy": e.Stderr.String(),
	}
	held["Redis"] = w.redisDump()
	for where, text := range held {
		if strings.Contains(text, secret) {
			w.t.Errorf("%s holds an API key: %s", where, text[:min(len(text), 2000)])
		}
	}
}

// redisDump returns everything in Redis, as Redis writes it to a file without compression.
func (w *world) redisDump() string {
	w.t.Helper()
	w.redis.Do("CONFIG", "SET", "rdbcompression", "no")
	w.redis.Do("SAVE")
	dir := strings.Fields(w.redis.Do("CONFIG", "GET", "dir"))
	content, err := os.ReadFile(filepath.Join(dir[len(dir)-1], "dump.rdb"))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, known := range []string{"weir:{decisions}:recent", "header:x-app", "/near"} {
		if !strings.Contains(string(content), known) {
			w.t.Errorf("the dump of Redis lacks %q", known)
		}
	}
	return string(content)
}
