package wasm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
)

// beside starts plugins side by side in one process. All of them have the same vm_id and root_id. A
// set may begin with the plugin's name and two colons; otherwise the name is weir.
func beside(t *testing.T, sets ...string) []*envoytest.Host {
	t.Helper()
	store := envoytest.NewStore()
	var plugins []*envoytest.Host
	for i, set := range sets {
		name, policies, named := strings.Cut(set, "::")
		if !named {
			name, policies = "weir", set
		}
		plugins = append(plugins, start(t, envoytest.Options{
			Workers: 2, Store: store, VMID: "weir", RootID: "weir", PluginName: name, Seed: uint64(i),
			DrainTime:    time.Minute,
			PluginConfig: alone(policies),
		}))
	}
	for _, h := range plugins {
		h.Advance(20 * time.Millisecond)
	}
	return plugins
}

// turns sends n requests through each plugin in turn and counts the requests that passed.
func turns(t *testing.T, plugins []*envoytest.Host, n int) (passed []int) {
	t.Helper()
	passed = make([]int, len(plugins))
	for i := range n {
		for p, h := range plugins {
			passed[p] += count(t, h, i%2, 1, get("x-key", "a"))
		}
	}
	return passed
}

// Plugins of one Envoy each keep their own policies, however alike they are called: neither takes
// the other's figures, whichever of the two a client comes through.
func TestPluginsSideBySide(t *testing.T) {
	five, many := setOf(limits("p", "local", "5/1h")), setOf(limits("p", "local", "1000/1s"))
	log := setOf(limits("p", "local", "7/1h", `"algorithm": "sliding_log"`))
	window := setOf(limits("p", "local", "6/1h", `"algorithm": "fixed_window"`))
	for _, c := range []struct {
		name string
		sets []string
		want string
	}{
		{"two limits of one name", []string{five, many}, "[5 40]"},
		{"the other way round", []string{many, five}, "[40 5]"},
		{"three algorithms", []string{five, log, window}, "[5 7 6]"},
		{"windows of two sizes", []string{log, setOf(limits("p", "local", "9/1h", `"algorithm": "sliding_log"`))}, "[7 9]"},
		{"the same limit under two names", []string{"one::" + five, "two::" + five}, "[5 5]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := fmt.Sprint(turns(t, beside(t, c.sets...), 40)); got != c.want {
				t.Errorf("passed %s, want %s", got, c.want)
			}
		})
	}
}

// A plugin that works alone never obeys policies that another plugin of the process has from a
// control plane.
func TestAPluginAloneBesideOneWithAControlPlane(t *testing.T) {
	store := envoytest.NewStore()
	w := newWorld(t, fleet{})
	central := start(t, envoytest.Options{
		Workers: 2, Store: store, VMID: "weir", RootID: "weir", PluginName: "weir", PluginConfig: w.config(""),
		NodeID: "n", Clusters: []string{"weir"},
		Env: map[string]string{"WEIR_NODE_TOKEN": token}, Calls: func(c *envoytest.Call) { w.plane.handle(0, c) },
	})
	w.nodes = append(w.nodes, central)
	w.plane.push(setOf(limits("p", "local", "9/1h")))
	w.advance(100 * time.Millisecond)
	own := start(t, envoytest.Options{Workers: 2, Store: store, VMID: "weir", RootID: "weir", PluginName: "weir",
		Seed: 7, PluginConfig: alone(setOf(limits("p", "local", "3/1h")))})
	own.Advance(100 * time.Millisecond)
	w.plane.push(setOf(limits("p", "local", "10/1h")))
	w.advance(100 * time.Millisecond)
	own.Advance(100 * time.Millisecond)
	if got := fmt.Sprint(turns(t, []*envoytest.Host{own, central}, 20)); got != "[3 10]" {
		t.Errorf("passed %s, want [3 10]", got)
	}
}

// A changed inline set keeps the used tokens. A policy that did not change has one bucket in both
// sets. The old set's figures never come back, though requests on old connections still use that
// set for a while.
func TestAnInlineSetIsChanged(t *testing.T) {
	for _, c := range []struct {
		name        string
		was, is     string
		before      int
		want        int
		afterOldOne int
	}{
		{"lowered", "1000/1s", "5/1h", 2, 3, 0},
		{"lowered below the used tokens", "10/1h", "5/1h", 8, 0, 0},
		{"raised", "5/1h", "12/1h", 5, 7, 0},
		{"not at all", "5/1h", "5/1h", 3, 2, 0},
	} {
		for _, algorithm := range []string{"token_bucket", "sliding_log", "fixed_window"} {
			if algorithm == "sliding_log" && c.was == "1000/1s" {
				continue // A log counts to 256.
			}
			want := c.want
			if algorithm == "token_bucket" && c.was == "1000/1s" {
				want = 5 // The old limit has earned the used tokens again.
			}
			t.Run(c.name+" "+algorithm, func(t *testing.T) {
				set := func(rate, other string) []byte {
					return alone(setOf(limits("other", "local", other, forAll), limits("p", "local", rate, `"algorithm": "`+algorithm+`"`)))
				}
				h := start(t, envoytest.Options{Workers: 2, VMID: "v", RootID: "r", DrainTime: time.Minute,
					PluginConfig: set(c.was, "900/1h")})
				h.Advance(10 * time.Millisecond)
				count(t, h, 0, c.before, get("x-key", "a"))
				if err := h.UpdatePlugin(set(c.is, "901/1h")); err != nil {
					t.Fatal(err)
				}
				h.Advance(10 * time.Millisecond)
				if n := count(t, h, 1, 50, get("x-key", "a")); n != want {
					t.Errorf("%d more passed, want %d", n, want)
				}
				h.Advance(2 * time.Minute)
				if n := count(t, h, 0, 20, get("x-key", "a")); n != c.afterOldOne {
					t.Errorf("%d passed when the old one was gone, want %d", n, c.afterOldOne)
				}
			})
		}
	}
}

// While an old set drains beside its successor the new figures hold on new connections, however
// often the old one's are used.
func TestAnOldInlineSetDrains(t *testing.T) {
	store := envoytest.NewStore()
	begin := func(seed uint64, rate string) *envoytest.Host {
		return start(t, envoytest.Options{Store: store, VMID: "v", RootID: "r", Seed: seed,
			PluginConfig: alone(setOf(limits("p", "local", rate)))})
	}
	old := begin(1, "1000/1h")
	count(t, old, 0, 2, get("x-key", "a"))
	fresh := begin(2, "5/1h")
	fresh.Advance(10 * time.Millisecond)
	old.Advance(10 * time.Millisecond)
	passed := 0
	for range 30 {
		passed += count(t, fresh, 0, 1, get("x-key", "a"))
		count(t, old, 0, 1, get("x-key", "a"))
	}
	if passed != 3 {
		t.Errorf("%d passed by the new limit of 5, of which 2 were used", passed)
	}
}

// A set that comes back after it was gone keeps the tokens that were used under the set in between.
func TestAnInlineSetComesBack(t *testing.T) {
	set := func(rate string) []byte { return alone(setOf(limits("p", "local", rate))) }
	h := start(t, envoytest.Options{VMID: "v", RootID: "r", DrainTime: time.Second, PluginConfig: set("10/1h")})
	h.Advance(10 * time.Millisecond)
	count(t, h, 0, 2, get("x-key", "a"))
	for _, step := range []struct {
		rate string
		n    int
		want int
	}{{"20/1h", 5, 5}, {"10/1h", 20, 3}, {"20/1h", 20, 10}} {
		if err := h.UpdatePlugin(set(step.rate)); err != nil {
			t.Fatal(err)
		}
		h.Advance(10 * time.Second)
		if n := count(t, h, 0, step.n, get("x-key", "a")); n != step.want {
			t.Errorf("%d more passed by %s, want %d", n, step.rate, step.want)
		}
	}
}

// The table's size is changed by a listener update: each key passes its burst and no more, with
// both configurations at work.
func TestAnotherTableKeepsBuckets(t *testing.T) {
	set := setOf(limits("p", "local", "10/1h"))
	config := func(keys int) []byte { return fmt.Appendf(nil, `{"table": {"keys": %d}, "policyset": %s}`, keys, set) }
	h := start(t, envoytest.Options{Workers: 2, VMID: "v", RootID: "r", DrainTime: time.Minute,
		PluginConfig: config(65536)})
	passed := make([]int, 20)
	for _, keys := range []int{131072, 262144, 65536, 1024, 131072} {
		for k := range passed {
			passed[k] += count(t, h, k%2, 2, get("x-key", fmt.Sprint("key-", k)))
		}
		if err := h.UpdatePlugin(config(keys)); err != nil {
			t.Fatal(err)
		}
		h.Advance(time.Second)
	}
	for k := range passed {
		if passed[k] += count(t, h, k%2, 20, get("x-key", fmt.Sprint("key-", k))); passed[k] != 10 {
			t.Errorf("key %d passed %d times, want 10", k, passed[k])
		}
	}
}
