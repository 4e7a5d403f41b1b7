package native

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

const (
	policySets     = 40
	requestsPerSet = 25
	corpusSeed     = 42
	replayToken    = "the-token-of-the-replay"
)

// hosts run the filter in the two Envoys that are compared.
var hosts = [2]stack.FilterHost{stack.WasmHost, stack.NativeHost}

// A thousand requests to forty policy sets have the same answers with both hosts, byte for byte,
// and arrive in the same form at the upstream. Times to wait differ by the time between the two
// requests, and by the spread that Weir adds to them.
func TestBothHostsGiveTheSameAnswers(t *testing.T) {
	w := startReplay(t, nil)
	r := rand.New(rand.NewPCG(corpusSeed, corpusSeed))
	statuses := map[int]int{}
	for n := range policySets {
		probe := fmt.Sprint("probe-", n)
		set := drawSet(t, r, probe)
		w.apply(set, probe)
		for range requestsPerSet {
			first := drawRequest(t, r, w.envoys[0].URL())
			second := first.Clone(t.Context())
			second.URL.Host = strings.TrimPrefix(w.envoys[1].URL(), "http://")
			want, got := w.replay(first), w.replay(second)
			statuses[want.status]++
			if problem := want.compare(got); problem != "" {
				t.Errorf("%s %s %v of %s\nto the policy set %s\n%s\nwith Wasm %s\nnatively  %s",
					first.Method, first.URL.Path, first.Header, first.Host, set, problem, want.text, got.text)
			}
		}
	}
	t.Logf("statuses: %v", statuses)
	for _, status := range []int{200, 400, 403, 429} {
		if statuses[status] < 5 {
			t.Errorf("%d answers have the status %d: the corpus shows too little", statuses[status], status)
		}
	}
}

// A replay is a control plane with an Envoy for each host.
type replay struct {
	t       *testing.T
	control *stack.ControlPlane
	envoys  [2]*stack.Envoy
}

func startReplay(t *testing.T, rewrite func(string) string) *replay {
	t.Helper()
	upstream, err := stack.StartUpstream(http.HandlerFunc(echo))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Stop)
	port, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := &replay{t: t}
	w.control, err = stack.StartControlPlane(ctx, stack.ControlPlaneOptions{
		Binary: filepath.Join(repository, "build/weir"), Port: port, DataDir: t.TempDir(),
		AdminToken: replayToken, NodeToken: replayToken + "-nodes",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.control.Stop)
	config, err := os.ReadFile(filepath.Join(repository, "envoy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for i, host := range hosts {
		w.envoys[i], err = stack.StartEnvoy(ctx, stack.EnvoyOptions{
			Name: string(host), NodeID: string(host), NodeToken: replayToken + "-nodes", FilterHost: host,
			Config: string(config), Wasm: filepath.Join(repository, "build/weir.wasm"),
			UpstreamPort: upstream.Port, ControlPlanePort: port, Concurrency: 1, Rewrite: rewrite,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.envoys[i].Stop)
	}
	return w
}

// echo answers with the request, without the number that Envoy gives each request.
func echo(w http.ResponseWriter, r *http.Request) {
	r.Header.Del("x-request-id")
	json.NewEncoder(w).Encode(stack.Echoed{Method: r.Method, Path: r.URL.Path, Headers: r.Header})
}

// apply stores a policy set and waits until the worker of each Envoy has it.
func (w *replay) apply(set []byte, probe string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	version, err := w.control.Apply(ctx, set)
	if err != nil {
		w.t.Fatalf("%s: %v", set, err)
	}
	if err := w.control.AwaitApplied(ctx, version, string(hosts[0]), string(hosts[1])); err != nil {
		w.t.Fatal(err)
	}
	for _, e := range w.envoys {
		name := "wasmcustom.weir.policy." + probe + ".outcome.allowed.decisions"
		labelled := "wasmcustom.weir.decisions.weir_policy." + probe + ".weir_outcome.allowed"
		err := stack.Await(ctx, "the worker to have the policy set", func(ctx context.Context) error {
			if _, _, err := send(http.DefaultClient, e, "x-probe", "1"); err != nil {
				return err
			}
			stats, err := e.Admin(ctx, "/stats?filter="+regexp.QuoteMeta(probe))
			if err == nil && !strings.Contains(string(stats), name) && !strings.Contains(string(stats), labelled) {
				err = fmt.Errorf("it counts %s", stats)
			}
			return err
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// A replayed is an answer: its text without the times to wait, and those times in seconds.
type replayed struct {
	status int
	text   string
	times  []float64
}

// waits matches the times to wait in the lines of an answer.
var waits = regexp.MustCompile(`(?i)(;t=|^(?:retry-after|x-ratelimit-reset|x-ratelimit-reset-after|x-rate-limit-reset): ` +
	`|"retry_after":|Try again in )([0-9.]*[0-9])`)

// replay sends a request and reads its answer.
func (w *replay) replay(request *http.Request) (a replayed) {
	w.t.Helper()
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	lines := []string{response.Status}
	for _, name := range slices.Sorted(maps.Keys(response.Header)) {
		if name != "Date" && name != "X-Envoy-Upstream-Service-Time" {
			lines = append(lines, name+": "+strings.Join(response.Header[name], " | "))
		}
	}
	lines = append(lines, string(body))
	a = w.read(lines)
	a.status = response.StatusCode
	return a
}

// read takes the times to wait out of the lines of an answer.
func (w *replay) read(lines []string) (a replayed) {
	w.t.Helper()
	for i, line := range lines {
		lines[i] = waits.ReplaceAllStringFunc(line, func(found string) string {
			parts := waits.FindStringSubmatch(found)
			seconds, err := strconv.ParseFloat(parts[2], 64)
			if err != nil {
				w.t.Fatal(err)
			}
			a.times = append(a.times, seconds)
			return parts[1] + "N"
		})
	}
	a.text = strings.Join(lines, "\n")
	return a
}

// compare says what is different in another answer, nothing if they are the same.
func (a replayed) compare(b replayed) string {
	if a.text != b.text {
		return "the answers are different"
	}
	for i := range a.times {
		// A spread is at most 30 s; the two requests are sent within a second.
		if between := a.times[i] - b.times[i]; max(between, -between) > 31 {
			return fmt.Sprintf("the times to wait are %v and %v", a.times, b.times)
		}
	}
	return ""
}
