package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

// growing returns the blocks in one language of the pages that lead from one Envoy to regions.
func growing(t *testing.T, language string) (all []string) {
	t.Helper()
	for _, page := range []string{"04-one-envoy", "05-control-plane", "07-redis", "10-production"} {
		for _, b := range blocks(t, "docs/start/"+page+".md") {
			if b.language == language {
				all = append(all, b.text)
			}
		}
	}
	return all
}

// oneLine returns a JSON block as the plugin's configuration, which takes one line of Envoy's
// configuration.
func oneLine(block string) string { return strings.Join(strings.Fields(block), " ") }

// customer sends requests of one customer through an Envoy and counts the requests that pass.
func customer(w *world, envoy int, key string, requests int) (passed int64) {
	w.t.Helper()
	url := w.envoys[envoy].URL() + "/"
	got := load{url: url, clients: 1, total: requests, request: func(int) *http.Request {
		r, err := http.NewRequestWithContext(w.ctx, http.MethodGet, url, nil)
		if err != nil {
			w.t.Fatal(err)
		}
		r.Header.Set("x-api-key", key)
		return r
	}}.run(w.ctx)
	if got.statuses[200]+got.statuses[429] != int64(requests) {
		w.t.Errorf("of %d requests: %s", requests, got)
	}
	return got.statuses[200]
}

// commands runs the lines of a block in a folder that holds the pages' limits.yaml. Servers run
// until the test ends. ports replace 8080 and so on, and the texts of replace replace the texts of
// the page.
func commands(t *testing.T, block string, ports []int, replace ...string) (serving []*stack.Process) {
	t.Helper()
	dir := t.TempDir()
	limits := growing(t, "yaml")[0]
	if err := os.WriteFile(filepath.Join(dir, "limits.yaml"), []byte(limits), 0o600); err != nil {
		t.Fatal(err)
	}
	weir, err := filepath.Abs(controlPlanePath)
	if err != nil {
		t.Fatal(err)
	}
	replace = append(replace, "build/weir", weir, "--data-dir state", "--data-dir "+filepath.Join(dir, "state"))
	for i, port := range ports {
		replace = append(replace, fmt.Sprint("127.0.0.1:", 8080+i), fmt.Sprint("127.0.0.1:", port))
	}
	environment := append(cleanEnvironment(), "XDG_CONFIG_HOME="+dir, "WEIR_ADMIN_TOKEN="+adminToken,
		"WEIR_NODE_TOKEN="+nodeToken, fmt.Sprint("WEIR_SERVER=http://127.0.0.1:", ports[0]))
	script := strings.NewReplacer(replace...).Replace(strings.ReplaceAll(block, "\\\n", ""))
	for _, line := range strings.Split(strings.TrimSpace(script), "\n") {
		if !strings.Contains(line, " serve ") {
			run := exec.CommandContext(t.Context(), "bash", "-eu", "-c", line)
			run.Dir, run.Env = dir, environment
			if output, err := run.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", line, err, output)
			}
			continue
		}
		serving = append(serving, serve(t, line, environment, ports[len(serving)]))
	}
	return serving
}

func serve(t *testing.T, line string, environment []string, port int) *stack.Process {
	t.Helper()
	name := "weir " + strconv.Itoa(port)
	p, err := stack.Start(stack.Command{Name: name, Path: "bash", Args: []string{"-c", "exec " + line},
		Env: environment})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = p.AwaitReady(ctx, func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/readyz", port), nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("/readyz says %s", answer.Status)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, p.Tail(20))
	}
	return p
}

// cleanEnvironment returns this process's environment without Weir's settings, so that only the
// page's settings count.
func cleanEnvironment() (clean []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "WEIR_") || strings.HasPrefix(v, "WEIR_CACHE=") {
			clean = append(clean, v)
		}
	}
	return clean
}

func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		port, err := stack.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, port)
	}
	return ports
}

// Page 4: 100 pass through one Envoy, and through two with the half each.
func TestGrowingWithoutAServer(t *testing.T) {
	t.Parallel()
	for i, envoys := range []int{1, 2} {
		w := start(t, setup{alone: true, envoys: envoys, plugin: oneLine(growing(t, "json")[i])})
		passed := int64(0)
		for e := range envoys {
			passed += customer(w, e, "acme", 120)
		}
		if passed != 100 {
			t.Errorf("%d Envoys: %d of 100 passed", envoys, passed)
		}
	}
}

// Page 5: each Envoy knows the requests that the other Envoy has let through. The first 60 of 100
// all pass.
func TestGrowingToAControlPlane(t *testing.T) {
	t.Parallel()
	w := start(t, setup{alone: true, envoys: 2, plugin: oneLine(growing(t, "json")[2])})
	if passed := customer(w, 0, "before", 60); passed != 50 {
		t.Errorf("before the control plane %d passed; the plugin's own policy set has 50", passed)
	}
	commands(t, growing(t, "bash")[0], []int{w.serve.Port})
	first, second := awaitGlobal(w, w.serve.Port)
	if first != 60 || first+second > 100 {
		t.Errorf("%d and %d passed; 60, and 100 in all", first, second)
	}
}

// awaitGlobal waits until both Envoys apply the policy set, then sends 60 requests through each.
func awaitGlobal(w *world, port int) (first, second int64) {
	w.t.Helper()
	w.controlPlane = stack.ControlPlaneAt(port, adminToken)
	w.awaitApplied(1)
	return customer(w, 0, "acme", 60), customer(w, 1, "acme", 60)
}

// Page 7: two control planes on one Redis, of which the first is killed. No customer within the
// limit is refused.
func TestGrowingToRedis(t *testing.T) {
	t.Parallel()
	other := freePorts(t, 1)[0]
	w := start(t, setup{alone: true, envoys: 2, ways: func(_ string, port int) []int { return []int{port, other} }})
	ports := []int{w.serve.Port, other}
	serving := commands(t, growing(t, "bash")[1], ports, "redis://127.0.0.1:6379/0", redistest.Start(t).URL())
	first, second := awaitGlobal(w, other)
	if first != 60 || first+second > 100 {
		t.Errorf("%d and %d passed; 60, and 100 in all", first, second)
	}
	serving[0].Kill()
	for i := range 10 {
		if passed := customer(w, i%2, fmt.Sprint("customer ", i), 10); passed != 10 {
			t.Errorf("with one of two control planes %d of 10 passed", passed)
		}
	}
}

// Page 10: two regions, each with a Redis of its own, and one between them.
func TestGrowingToRegions(t *testing.T) {
	t.Parallel()
	w := start(t, setup{alone: true})
	ports := []int{w.serve.Port, freePorts(t, 1)[0]}
	commands(t, growing(t, "bash")[2], ports, "redis://redis.eu.internal:6379", redistest.Start(t).URL(),
		"redis://redis.us.internal:6379", redistest.Start(t).URL(), "redis://shared.internal:6379",
		redistest.Start(t).URL())
	w.controlPlane = stack.ControlPlaneAt(ports[0], adminToken)
	w.awaitApplied(1)
	if passed := customer(w, 0, "acme", 60); passed != 50 {
		t.Errorf("%d passed; one of two regions has half of the burst", passed)
	}
}
