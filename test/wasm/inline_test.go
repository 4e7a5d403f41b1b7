package wasm

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/policy"
)

// plain and rich return the text of a policy with its own path; rich's text is twice as long.
func plain(i int) string {
	return limits(fmt.Sprint("policy-", i), "local", "10/1s", fmt.Sprintf(`"match": {"paths": ["/v1/path/%d"]}`, i))
}

func rich(i int) string {
	return limits(fmt.Sprint("policy-", i), "local", "10/1s burst 20", fmt.Sprintf(`"match": {"hosts": ["api.example.com"], "methods": ["GET"], "paths": ["/v1/path/%d"]}`, i),
		`"partition": ["header:x-key", "client_ip"], "if_absent": "shared", "on_failure": {"local_for": "10s", "then": "deny"}, "algorithm": "token_bucket"`)
}

// inlineSet returns a set of n policies.
func inlineSet(n int, text func(i int) string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = text(i)
	}
	return setOf(all...)
}

// An inline set takes no more of a machine's memory than a pushed set: it is read policy by policy,
// and the memory for reading one policy is used again for the next.
func TestMemoryOfInlineSets(t *testing.T) {
	for _, c := range []struct {
		name     string
		policies int
		text     func(i int) string
		most     float64 // in MB of 2^20 bytes
	}{
		{"100", 100, plain, 0.5}, {"1000", 1000, plain, 2}, {"10 000", 10_000, plain, 16},
		{"10 000 long ones", 10_000, rich, 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			set := inlineSet(c.policies, c.text)
			begin := time.Now()
			h := start(t, envoytest.Options{PluginConfig: alone(set)})
			took := time.Since(begin)
			memory := float64(h.MemoryBytes(0)) / (1 << 20)
			t.Logf("%d policies in %d bytes: three machines after %s of real time, of %.1f MB", c.policies, len(set),
				took.Round(time.Millisecond), memory)
			if memory > c.most {
				t.Errorf("%.1f MB with %d policies, want at most %.1f", memory, c.policies, c.most)
			}
			request := get("x-key", "a")
			request.Headers[0][1], request.Headers[1][1] = "GET", "/v1/path/7"
			passes(t, h, 0, request)
		})
	}
}

// The control plane's sets find room where an inline one was.
func TestMemoryOfInlineSetsThatAreReplaced(t *testing.T) {
	set := inlineSet(10_000, plain)
	w := newWorld(t, fleet{nodes: 1, keys: 65_536, inline: set})
	for push := range 6 {
		w.plane.push(set)
		w.advance(100 * time.Millisecond)
		if memory := w.nodes[0].MemoryBytes(0); memory > 16<<20 {
			t.Errorf("%d bytes after %d pushes, want at most 16 MB", memory, push+1)
		}
	}
}

// Reading a policy allocates little, and however many there are nothing of it stays: a collection
// of the filter's memory goes through all that is kept, and there are the more of them the more is
// thrown away.
func TestInlinePoliciesAreReadInPassing(t *testing.T) {
	const n = 1000
	config := alone(inlineSet(n, plain))
	seen := 0
	allocations := testing.AllocsPerRun(3, func() {
		seen = 0
		doc, err := policy.ParseJSON(config)
		if err != nil {
			t.Fatal(err)
		}
		plugin, err := policy.DecodePluginEach(doc, func(*policy.Policy) { seen++ })
		if err != nil || len(plugin.Set.Policies) > 0 {
			t.Fatalf("%d policies were kept, %v", len(plugin.Set.Policies), err)
		}
	})
	const most = 40
	t.Logf("%.1f allocations for each policy", allocations/n)
	if seen != n || allocations > most*n {
		t.Errorf("%.1f allocations for each of %d policies, want at most %d", allocations/n, seen, most)
	}
}

// Policies that are handed out one after the other equal the policies that are kept otherwise, and
// so do the problems.
func TestPoliciesInPassingAreTheSame(t *testing.T) {
	for _, text := range []string{
		`{"policyset": ` + inlineSet(100, rich) + `}`,
		`{"policyset": ` + setOf(plain(1), rich(2), plain(1), `{"name": 1}`, rich(2)) + `}`,
		`{"policyset": ` + setOf(limits("a", "local", "1/1s", `"partition": ["host", "consumer", "tier"]`), limits("b", "local", "1/1s", `"partition": ["consumer"]`)) + `}`,
	} {
		doc, err := policy.ParseJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		kept, want := policy.DecodePlugin(doc)
		var passed []policy.Policy
		plugin, err := policy.DecodePluginEach(doc, func(p *policy.Policy) { passed = append(passed, *p) })
		if !reflect.DeepEqual(err, want) {
			t.Errorf("problems:\n%v\nwant\n%v", err, want)
		}
		if want != nil {
			continue
		}
		plugin.Set.Policies = passed
		if !reflect.DeepEqual(plugin, kept) {
			t.Errorf("got\n%+v\nwant\n%+v", plugin, kept)
		}
	}
}
