package native

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

const (
	fewReloads, manyReloads = 500, 10_000
	// No token of bucketQuota comes back during the test; a hundredth of the reloads takes one.
	bucketQuota = 100

	builtFilter = "build/weir.wasm" // libweir.so is beside it.
	// mark stands for the number of the reload, so that each configuration is another one.
	mark          = "MARK"
	reloadedRules = `{"policyset": {"version": "weir/v1", "policies": [` +
		`{"name": "keys", "partition": ["header:x-key"], "limit": {"quota": 100, "window": "720h"}, "mode": "local"}, ` +
		`{"name": "other", "match": {"paths": ["/MARK"]}, "partition": [], ` +
		`"limit": {"quota": 1, "window": "1h"}, "mode": "local"}]}}`
)

// New configurations of the filter leave no memory, descriptors or threads behind, and keep its
// buckets.
func TestReloadsLeaveNothingBehind(t *testing.T) {
	reloads := fewReloads
	if *full {
		reloads = manyReloads
	}
	listeners := filepath.Join(t.TempDir(), "listeners.yaml")
	var template string
	e := startEnvoy(t, builtFilter, reloadedRules, func(o *stack.EnvoyOptions) {
		var err error
		if o.Port, err = stack.FreePort(); err != nil {
			t.Fatal(err)
		}
		o.Rewrite = func(config string) string {
			config, template = moveListeners(config, listeners)
			writeListeners(t, listeners, template, 0)
			return config
		}
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var before struct{ memory, descriptors, threads int }
	for n := 1; n <= reloads; n++ {
		writeListeners(t, listeners, template, n)
		awaitUpdates(t, e, n+1)
		if n%(reloads/bucketQuota) == 0 {
			status, limit, err := send(client, e, "x-key", "k")
			if want := bucketQuota - n*bucketQuota/reloads; err != nil || status != http.StatusOK ||
				!strings.Contains(limit, fmt.Sprintf("r=%d;", want)) {
				t.Fatalf("reload %d: status %d, RateLimit %s, want r=%d: %v", n, status, limit, want, err)
			}
		}
		if n == reloads/5 {
			awaitDrained(t, e)
			before.memory, before.descriptors = residentMemory(t, e.PID()), count(t, e.PID(), "fd")
			before.threads = count(t, e.PID(), "task")
		}
	}
	awaitDrained(t, e)
	grown := residentMemory(t, e.PID()) - before.memory
	descriptors, threads := count(t, e.PID(), "fd"), count(t, e.PID(), "task")
	t.Logf("%d reloads: over the last four fifths memory grew by %d KiB; descriptors %d before, %d now; threads %d, %d",
		reloads, grown>>10, before.descriptors, descriptors, before.threads, threads)
	if grown > 16<<20 {
		t.Errorf("memory grew by %d bytes", grown)
	}
	if threads > before.threads || descriptors > before.descriptors+10 {
		t.Errorf("threads grew from %d to %d, descriptors from %d to %d", before.threads, threads,
			before.descriptors, descriptors)
	}
}

// moveListeners lets Envoy take its listeners from a file, and returns the file's content.
func moveListeners(config, file string) (bootstrap, listeners string) {
	const before, after, name = "  listeners:\n", "\n  clusters:", "    - name: ingress\n"
	head, rest, _ := strings.Cut(config, before)
	block, tail, _ := strings.Cut(rest, after)
	source := fmt.Sprintf("dynamic_resources: {lds_config: {path_config_source: {path: %q, watched_directory: "+
		"{path: %q}}}}\n", file, filepath.Dir(file))
	bootstrap = strings.Replace(head, "static_resources:", source+"static_resources:", 1) + after[1:] + tail
	typed := "    - \"@type\": type.googleapis.com/envoy.config.listener.v3.Listener\n      name: ingress\n"
	return bootstrap, "resources:\n" + strings.Replace(block, name, typed, 1)
}

// writeListeners writes the listeners of a reload, in one step.
func writeListeners(t *testing.T, file, template string, reload int) {
	t.Helper()
	module, err := filepath.Abs(filepath.Join(repository, builtFilter))
	if err != nil {
		t.Fatal(err)
	}
	content, err := stack.NativeHost.Configure(strings.ReplaceAll(template, mark, fmt.Sprint(reload)), module)
	if err != nil {
		t.Fatal(err)
	}
	replace(t, file, content)
}

// replace writes a file in one step.
func replace(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// awaitDrained waits until no replaced listener is left: it keeps its sockets while it drains.
func awaitDrained(t *testing.T, e *stack.Envoy) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := stack.Await(ctx, "replaced listeners to have drained", func(context.Context) error {
		content, err := e.Admin(ctx, "/stats?filter=^listener_manager.total_.*_draining$")
		if err == nil && (len(content) == 0 || regexp.MustCompile(`: [1-9]`).Match(content)) {
			err = fmt.Errorf("Envoy has\n%s", content)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// awaitUpdates waits until Envoy has taken this number of listeners' versions.
func awaitUpdates(t *testing.T, e *stack.Envoy, want int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		content, err := e.Admin(t.Context(), "/stats?filter=^listener_manager.lds.update_(success|rejected)$")
		if err != nil {
			t.Fatal(err)
		}
		text := string(content)
		if strings.Contains(text, fmt.Sprintf("update_success: %d\n", want)) {
			return
		}
		if !strings.Contains(text, "update_rejected: 0\n") || time.Now().After(deadline) {
			t.Fatalf("want %d updates; Envoy has\n%s%s", want, text, e.Stderr.Tail(10))
		}
	}
}
