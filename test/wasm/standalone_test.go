package wasm

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
)

// A wrong plugin configuration keeps the proxy from starting, and its log names the mistake and its
// place.
func TestWrongConfigurationRefusesThePlugin(t *testing.T) {
	p := func(fields string) string {
		return `{"policyset": {"version": "weir/v1", "policies": [{"name": "p", "partition": [], ` + fields + `}]}}`
	}
	limit := `"limit": {"quota": 1, "window": "1s"}`
	for _, c := range []struct{ config, says string }{
		{``, "is not valid JSON"},
		{`{`, "is not valid JSON"},
		{`[]`, "must be a mapping, not a list"},
		{`{}`, "has neither control_plane nor policyset"},
		{`{"control_plane": null, "policyset": null}`, "has neither control_plane nor policyset"},
		{`{"policysets": {}}`, "policysets: unknown field: did you mean policyset?"},
		{`{"control_plane": {"token": {"env": "T"}}}`, "control_plane.cluster: is missing"},
		{`{"control_plane": {"cluster": "weir"}}`, "control_plane.token: is missing"},
		{`{"control_plane": {"cluster": "weir", "token": "secret"}}`, "control_plane.token: must be a mapping"},
		{`{"control_plane": {"cluster": "weir", "token": {}}}`, "control_plane.token.env: is missing"},
		{`{"control_plane": {"cluster": "weir", "token": {"env": "NOT_PASSED_ON"}}}`, "control_plane.token.env: the environment variable NOT_PASSED_ON is empty or not passed on"},
		{`{"control_plane": {"cluster": 3, "token": {"env": "T"}}}`, "control_plane.cluster: must be a string"},
		{`{"node": {"id": "a b"}, "policyset": {"version": "weir/v1"}}`, "node.id: must be of printable characters"},
		{`{"table": {"keys": 10}, "policyset": {"version": "weir/v1"}}`, "table.keys: must be a whole number from 1024"},
		{`{"policyset": {}}`, "policyset.version: is missing"},
		{`{"policyset": {"version": "weir/v2"}}`, "policyset.version: must be weir/v1"},
		{p(`"limit": {"quota": -1, "window": "1s"}`), "policyset.policies[0].limit.quota: must be a whole number from 0"},
		{p(`"limit": {"quota": 1, "window": "1"}`), "policyset.policies[0].limit.window: must be a whole number with a unit"},
		{p(`"limit": {"quota": 1, "window": "400d"}`), "policyset.policies[0].limit.window: must be"},
		{p(`"limit": {"quota": 4503599627370496, "window": "366d"}`), "policyset.policies[0].limit: quota, window and burst need more than exact arithmetic holds"},
		{p(limit + `, "mode": "global"`), "policyset.policies[0].mode: must be one of local, leased, strict"},
		{p(limit + `, "mode": "optimistic", "algorithm": "fixed_window"`), "policyset.policies[0].mode: cannot be optimistic with fixed_window"},
		{p(limit + `, "algorithm": "gcra"`), "policyset.policies[0].algorithm: must be one of token_bucket, leaky_bucket, fixed_window"},
		{p(limit + `, "algorithm": "leaky_bucket"`), "policyset.policies[0].mode: cannot be leased with leaky_bucket"},
		{p(limit + `, "cost": 2`), "policyset.policies[0].cost: is above the burst of 1"},
		{p(limit + `, "match": {"paths": ["v1"]}`), "policyset.policies[0].match.paths[0]: must start with /"},
		{p(limit + `, "on_failure": {"then": "retry"}`), "policyset.policies[0].on_failure.then: must be one of allow, deny, local"},
		{p(limit + `, "name": "q"`), "policyset.policies[0].name: is given twice"},
		{p(``), "is not valid JSON"},
		{strings.Repeat(`{"a":`, 10000), "nests too deep"},
	} {
		t.Run(c.says, func(t *testing.T) {
			h := filter.New(envoytest.Options{T: t, PluginConfig: []byte(c.config)})
			defer h.Close()
			err := h.Start()
			if err == nil {
				t.Fatal("the plugin started")
			}
			if !strings.Contains(err.Error(), "cannot apply the plugin configuration") ||
				!strings.Contains(err.Error(), c.says) {
				t.Errorf("the log does not say %q:\n%v", c.says, err)
			}
		})
	}
}

func TestEveryProblemIsListed(t *testing.T) {
	h := filter.New(envoytest.Options{T: t, PluginConfig: []byte(
		`{"table": {"keys": 1}, "policyset": {"version": "weir/v1", "policies": [{"name": "A"}, {"name": "b", "mode": "x"}]}}`)})
	defer h.Close()
	err := h.Start()
	if err == nil {
		t.Fatal("the plugin started")
	}
	for _, path := range []string{
		"table.keys", "policyset.policies[0].name", "policyset.policies[0].limit", "policyset.policies[0].partition",
		"policyset.policies[1].mode", "policyset.policies[1].limit",
	} {
		if !strings.Contains(err.Error(), path+": ") {
			t.Errorf("nothing about %s in\n%v", path, err)
		}
	}
}

// A listener update with a wrong configuration is rejected as a whole; the earlier configuration
// stays in force.
func TestWrongUpdateLeavesTheOldPolicies(t *testing.T) {
	h := start(t, envoytest.Options{PluginConfig: alone(setOf(limits("p", "local", "3/1h")))})
	count(t, h, 0, 2, get("x-key", "a"))
	err := h.UpdatePlugin([]byte(`{"policyset": {"version": "weir/v1", "policies": [{"name": "p", "limit": {"quota": 9}}]}}`))
	if err == nil || !strings.Contains(err.Error(), "policyset.policies[0].limit.window: is missing") {
		t.Errorf("UpdatePlugin returned %v", err)
	}
	if n := count(t, h, 0, 5, get("x-key", "a")); n != 1 {
		t.Errorf("%d more passed, want the third", n)
	}
}

// Without a control plane every mode limits on this Envoy alone, and the log says so once for each
// policy.
func TestModesRunAsLocal(t *testing.T) {
	h := start(t, envoytest.Options{Workers: 2, PluginConfig: alone(setOf(
		limits("here", "local", "5/1h"), limits("lent", "leased", "4/1h"), limits("asked", "strict", "3/1h")))})
	if n := count(t, h, 0, 2, get("x-key", "a")) + count(t, h, 1, 8, get("x-key", "a")); n != 3 {
		t.Errorf("%d passed, want 3: the least of all limits", n)
	}
	for policy, want := range map[string]bool{"here": false, "lent": true, "asked": true} {
		for _, vm := range []int{envoytest.Main, 0, 1} {
			warned := false
			for _, l := range h.Logs() {
				warned = warned || l.VM == vm && l.Level == envoytest.Warn &&
					strings.Contains(l.Text, "policy "+policy+" is ")
			}
			if warned != want {
				t.Errorf("policy %s: warned on VM %d: %v", policy, vm, warned)
			}
		}
	}
	if calls := h.Stats().Hostcalls["proxy_http_call"]; calls != 0 {
		t.Errorf("%d calls without a control plane", calls)
	}
}

// Foreign or damaged bytes under any of the filter's keys count as absent: a bucket in such a slot
// starts anew, the VM lives.
func TestDamagedSlot(t *testing.T) {
	h := start(t, envoytest.Options{PluginConfig: alone(setOf(limits("p", "local", "2/1h", forAll)))})
	count(t, h, 0, 1, get())
	for _, key := range h.SharedKeys() {
		for _, value := range [][]byte{nil, {}, []byte("x"), make([]byte, 1<<16)} {
			h.SetShared(key, value)
			if n := count(t, h, 0, 1, get()); n != 1 && key[4] == 's' {
				t.Errorf("with %d bytes at %q nothing passes", len(value), key)
			}
			h.Advance(20 * time.Millisecond)
		}
	}
	if !h.Alive(0) || !h.Alive(envoytest.Main) {
		t.Error("a VM has trapped")
	}
}
