package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// listener is one of an Envoy that gets them from a file. It has a filter for each plugin
// configuration.
type listener struct {
	name    string
	port    int
	plugins []string
}

// listeners makes envoy.yaml take its listeners from a file. write writes that file.
func listeners(t *testing.T, dir string) (rewrite func(string) string, write func(all ...listener)) {
	const before, after, filter = "  listeners:\n", "\n  clusters:", "                  - name: weir\n"
	file := filepath.Join(dir, "listeners.yaml")
	var block string
	rewrite = func(config string) string {
		head, rest, _ := strings.Cut(config, before)
		var tail string
		block, tail, _ = strings.Cut(rest, after)
		source := fmt.Sprintf("dynamic_resources: {lds_config: {path_config_source: {path: %q, watched_directory: "+
			"{path: %q}}}}\n", file, dir)
		return strings.Replace(head, "static_resources:", source+"static_resources:", 1) + after[1:] + tail
	}
	write = func(all ...listener) {
		t.Helper()
		var b strings.Builder
		b.WriteString("resources:\n")
		for _, l := range all {
			// One line has the address, one the plugin's configuration.
			top, rest, _ := strings.Cut(block, filter)
			one, router, _ := strings.Cut(rest, "                  - name: envoy.filters.http.router\n")
			top = strings.Replace(top, "    - name: ingress\n",
				"    - \"@type\": type.googleapis.com/envoy.config.listener.v3.Listener\n      name: "+l.name+"\n", 1)
			from := strings.Index(top, "socket_address: {")
			top = top[:from] + fmt.Sprintf("socket_address: {address: 127.0.0.1, port_value: %d}", l.port) +
				top[from+strings.Index(top[from:], "}")+1:]
			b.WriteString(top)
			for i, plugin := range l.plugins {
				at := strings.Index(one, "value: |\n") + len("value: |\n")
				b.WriteString(fmt.Sprintf("                  - name: weir-%d\n", i) + one[:at] +
					"                            " + plugin + "\n")
			}
			b.WriteString("                  - name: envoy.filters.http.router\n" + router + "\n")
		}
		if err := os.WriteFile(file+".new", []byte(onHost(t, b.String())), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	return rewrite, write
}

// inline returns the configuration of a plugin that works alone, with the policy p for each x-key.
func inline(quota int, window string, more string) string {
	return fmt.Sprintf(`{"table": {"keys": 2048}, "policyset": {"version": "weir/v1", "policies": [{"name": "p", "partition": ["header:x-key"], `+
		`"limit": {"quota": %d, "window": "%s"}, "mode": "local"}%s]}}`, quota, window, more)
}

// Listeners come and change while Envoy runs, and all of their plugins have the same names. A
// changed set keeps the used tokens. A set beside it neither takes nor gives figures, and neither
// do two plugins in one chain.
func TestPluginsInOneEnvoy(t *testing.T) {
	t.Parallel()
	w := start(t, setup{alone: true, plugin: inline(1, "1s", "")}) // For its upstream.
	port := func() int {
		port, err := stack.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		return port
	}
	dir := t.TempDir()
	rewrite, write := listeners(t, dir)
	first, a, b, chain := port(), port(), port(), port()
	o := w.envoyOptions("several")
	o.PluginConfig, o.Dir, o.Port = "{}", dir, first
	o.Rewrite = func(config string) string {
		config = rewrite(config)
		write(listener{"ingress", first, []string{inline(1000, "1h", "")}})
		return config
	}
	e, err := stack.StartEnvoy(w.within(patience), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Stop(); w.show(e.Process) })
	url := func(port int) string { return fmt.Sprintf("http://127.0.0.1:%d/", port) }
	passed := func(port, n int, key string) (passed int) {
		for range n {
			if ask(t, "GET", url(port), "x-key", key).status == 200 {
				passed++
			}
		}
		return passed
	}
	fresh := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	// inForce waits until new connections are decided by another limit.
	inForce := func(port int, says string) {
		t.Helper()
		for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
			answer, err := send(fresh, request("GET", url(port), "x-key", "probe-"+says))
			if err == nil && strings.Contains(fmt.Sprint(answer.Header["Ratelimit-Policy"]), says) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s is not in force: %v %v", says, answer.Header, err)
			}
		}
	}
	inForce(first, "q=1000")
	if n := passed(first, 4, "k"); n != 4 {
		t.Errorf("%d of 4 passed", n)
	}
	lowered := inline(6, "1h", `, {"name": "other", "match": {"paths": ["/other"]}, "partition": [], "limit": {"quota": 9, "window": "1h"}}`)
	write(listener{"ingress", first, []string{lowered}})
	inForce(first, "q=6")
	if n := passed(first, 10, "k"); n != 2 {
		t.Errorf("%d more passed of a limit that is now 6, of which 4 were used", n)
	}
	larger := strings.Replace(lowered, "2048", "65536", 1)
	write(listener{"ingress", first, []string{larger}},
		listener{"a", a, []string{inline(3, "1h", "")}}, listener{"b", b, []string{inline(1000, "1s", "")}},
		listener{"chain", chain, []string{inline(5, "1h", ""), inline(4, "1h", "")}})
	inForce(a, "q=3")
	inForce(b, "q=1000;w=1")
	inForce(chain, "q=")
	var got [3]int
	for range 20 {
		got[0] += passed(a, 1, "new")
		got[1] += passed(b, 1, "new")
	}
	got[2] = passed(chain, 20, "chained")
	if got != [3]int{3, 20, 4} {
		t.Errorf("passed %v, want 3 by the one listener, 20 by the other, and 4 through two filters", got)
	}
	// The listener and its neighbours ask for different sizes, so the size changes twice.
	for range 12 {
		if n := passed(first, 2, "k"); n != 0 {
			t.Fatalf("%d more passed after the table got another size", n)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
