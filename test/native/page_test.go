package native

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// The filter of docs/run/native.md runs in envoy.yaml in the place of the Wasm filter.
func TestThePagesFilterRuns(t *testing.T) {
	filter := pagesFilter(t)
	const configuration = `{"control_plane": {"cluster": "weir", "token": {"env": "WEIR_NODE_TOKEN"}, "authority": "weir"}}`
	if !strings.Contains(filter, configuration) {
		t.Fatalf("the page's filter does not have %s:\n%s", configuration, filter)
	}
	filter = strings.Replace(filter, configuration, keyRules, 1)
	e := startEnvoy(t, builtFilter, "", func(o *stack.EnvoyOptions) {
		o.Rewrite = func(config string) string {
			return stack.FilterText.ReplaceAllStringFunc(config, func(old string) string {
				return filter + stack.FilterText.FindStringSubmatch(old)[1]
			})
		}
	})
	for n := range 3 {
		status, _, err := send(&http.Client{}, e, "x-key", "k")
		if want := []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests}[n]; err != nil || status != want {
			t.Errorf("request %d: status %d, want %d: %v", n+1, status, want, err)
		}
	}
}

// keyRules allow two requests with one key.
const keyRules = `{"policyset": {"version": "weir/v1", "policies": [` +
	`{"name": "keys", "partition": ["header:x-key"], "limit": {"quota": 2, "window": "720h"}, "mode": "local"}]}}`

// pagesFilter returns the first block of YAML of docs/run/native.md, with the indentation that
// filters have in envoy.yaml.
func pagesFilter(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(repository, "docs/run/native.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	block, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("the page has no YAML")
	}
	const indentation = "                  "
	return indentation + strings.ReplaceAll(strings.TrimRight(block, "\n"), "\n", "\n"+indentation) + "\n"
}

// An Envoy that loads another build of the host, which has another name, keeps its buckets.
func TestAnotherBuildKeepsTheBuckets(t *testing.T) {
	dir := t.TempDir()
	content, err := os.ReadFile(filepath.Join(repository, "build/libweir.so"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"libweir.so", "libweir-later.so"} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	listeners, template := filepath.Join(dir, "listeners.yaml"), ""
	e := startEnvoy(t, builtFilter, keyRules, func(o *stack.EnvoyOptions) {
		if o.Port, err = stack.FreePort(); err != nil {
			t.Fatal(err)
		}
		o.Env = append(o.Env, "ENVOY_DYNAMIC_MODULES_SEARCH_PATH="+dir)
		o.Rewrite = func(config string) string {
			config, template = moveListeners(config, listeners)
			writeListeners(t, listeners, template, 0)
			return config
		}
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	status, limit, err := send(client, e, "x-key", "k")
	if status != http.StatusOK || !strings.Contains(limit, ";r=1;") {
		t.Fatalf("before: status %d, RateLimit %s: %v", status, limit, err)
	}
	written, err := os.ReadFile(listeners)
	if err != nil {
		t.Fatal(err)
	}
	// In a line of its own it is the name of the file.
	later := regexp.MustCompile(`(?m)^( +name: weir)$`).ReplaceAllString(string(written), "$1-later")
	replace(t, listeners, later)
	awaitUpdates(t, e, 2)
	// The old listener may take a connection until it has closed.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if loaded := mapped(t, e.PID(), "libweir-later.so"); loaded || time.Now().After(deadline) {
			break
		}
	}
	status, limit, err = send(client, e, "x-key", "k")
	if status != http.StatusOK || !strings.Contains(limit, ";r=0;") {
		t.Errorf("after: status %d, RateLimit %s: %v", status, limit, err)
	}
	if status, _, err := send(client, e, "x-key", "k"); status != http.StatusTooManyRequests {
		t.Errorf("beyond the quota: status %d: %v", status, err)
	}
	if !mapped(t, e.PID(), "libweir-later.so") {
		t.Error("Envoy has not loaded the later build")
	}
}

// mapped reports whether a process has loaded a file.
func mapped(t *testing.T, pid int, name string) bool {
	t.Helper()
	return strings.Contains(readProcess(t, pid, "maps"), name)
}
