package fromenvoy_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/fromenvoy"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/importertest"
	"github.com/weir-proxy/weir/shared/policy"
)

// service imports a configuration of the rate limit service, with an Envoy unless that is empty.
func service(t testing.TB, config, envoy string) *importer.Result {
	t.Helper()
	var envoys []importer.File
	if envoy != "" {
		envoys = []importer.File{{Name: "envoy.yaml", Text: []byte(envoy)}}
	}
	r, err := fromenvoy.RateLimitService([]importer.File{{Name: "config.yaml", Text: []byte(config)}}, envoys)
	if err != nil {
		t.Fatal(err)
	}
	importertest.Set(t, r)
	return r
}

func TestCalls(t *testing.T) {
	for _, c := range []struct{ descriptors, want string }{
		{"{key: a, value: b, rate_limit: {unit: minute, requests_per_unit: 5}}",
			"- name: d-a-b\n    match:\n      domain: d\n      descriptors:\n        - {name: a, equals: b}\n" +
				"    partition: []\n    algorithm: fixed_window\n    align: utc\n    limit: {quota: 5, window: 1m}\n" +
				"    mode: strict"},
		{"{key: a, rate_limit: {unit: YEAR, requests_per_unit: 5}}",
			"- {name: a, present: true}\n    partition: ['descriptor:a']\n    if_absent: shared\n" +
				"    algorithm: fixed_window\n    align: utc\n    limit: {quota: 5, window: 365d}"},
		{"{key: a, value: x*, rate_limit: {unit: day, requests_per_unit: 5}}",
			"- {name: a, prefix: x}\n    partition: ['descriptor:a']"},
		{"{key: a, value: x*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 5}}",
			"- {name: a, prefix: x}\n    partition: []"},
		{"{key: a, value: b}, {key: a, value: c*}, {key: a, rate_limit: {unit: day, requests_per_unit: 5}}",
			"{name: a, present: true, except: [{equals: b}, {prefix: c}]}"},
		{"{key: a, value: cb}, {key: a, value: d}, {key: a, value: c*, rate_limit: {unit: day, requests_per_unit: 5}}",
			"{name: a, prefix: c, except: [{equals: cb}]}"},
		{"{key: a, descriptors: [{key: b, value: c, rate_limit: {unit: day, requests_per_unit: 5}}]}",
			"- {name: a, present: true}\n        - {name: b, equals: c}\n    partition: ['descriptor:a']"},
		{"{key: a, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}", "enforcement: shadow"},
		{"{key: a, rate_limit: {unlimited: true}}", "policies: []"},
	} {
		if r := service(t, "domain: d\ndescriptors: ["+c.descriptors+"]",
			""); !strings.Contains(string(r.Document), c.want) {
			t.Errorf("%s: want\n%s\nin\n%s%s", c.descriptors, c.want, r.Document, importertest.Verdicts(r))
		}
	}
}

// global is an Envoy that asks the service for a domain, with the actions of a route.
func global(actions string) string {
	return `http_filters: [{name: f, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: d}}]
virtual_hosts: [{name: v, domains: [a.example.com], routes: [{match: {prefix: /api/}, route: {cluster: c, rate_limits: [{actions: [` + actions + "]}]}}]}]\n"
}

func TestAtEnvoy(t *testing.T) {
	for _, c := range []struct{ descriptors, actions, want string }{
		{"{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 5}}", "{remote_address: {}}",
			"hosts: [a.example.com]\n      paths: [/api/**]\n    partition: [client_ip]\n" +
				"    algorithm: fixed_window"},
		{"{key: generic_key, value: x, descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 5}}]}",
			"{generic_key: {descriptor_value: x}}, {request_headers: {header_name: x-user, descriptor_key: user}}",
			"partition: ['header:x-user']"},
		{"{key: user, value: bot-*, rate_limit: {unit: minute, requests_per_unit: 5}}",
			"{request_headers: {header_name: x-user, descriptor_key: user}}",
			"- {name: x-user, prefix: bot-}\n    partition: ['header:x-user']"},
		{"{key: generic_key, value: y, rate_limit: {unit: minute, requests_per_unit: 5}}",
			"{generic_key: {descriptor_value: x}}", "descriptors:\n        - {name: generic_key, equals: \"y\"}"},
	} {
		if r := service(t, "domain: d\ndescriptors: ["+c.descriptors+"]",
			global(c.actions)); !strings.Contains(string(r.Document), c.want) {
			t.Errorf("%s: want\n%s\nin\n%s%s", c.descriptors, c.want, r.Document, importertest.Verdicts(r))
		}
	}
}

// Each node and each setting beside a limit has a verdict.
func TestEachNodeHasAVerdict(t *testing.T) {
	text, err := os.ReadFile("testdata/ratelimit.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r := service(t, string(text), "")
	var lines []int
	for i, line := range strings.Split(string(text), "\n") {
		if strings.HasSuffix(line, "# node") || strings.HasSuffix(line, "# setting") {
			lines = append(lines, i+1)
		}
	}
	importertest.Account(t, r, lines)
	golden(t, "testdata/ratelimit.txt", r)
}

// node is a node of a generated configuration.
type node struct {
	key, value string
	limit      int // 0 is none.
	below      []*node
}

func generate(r *rand.Rand, depth int) (level []*node) {
	seen := map[string]bool{}
	for range 1 + r.IntN(4) {
		n := &node{key: []string{"a", "b"}[r.IntN(2)], value: []string{"", "x", "y", "xy", "x*", "y*", "*"}[r.IntN(7)]}
		if seen[n.key+"="+n.value] {
			continue
		}
		seen[n.key+"="+n.value] = true
		if r.IntN(3) > 0 {
			n.limit = 1 + r.IntN(1_000_000)
		}
		if depth < 3 && r.IntN(2) == 0 {
			n.below = generate(r, depth+1)
		}
		level = append(level, n)
	}
	return level
}

func written(level []*node) string {
	var texts []string
	for _, n := range level {
		text := fmt.Sprintf("{key: %s, value: %q", n.key, n.value)
		if n.limit > 0 {
			text += fmt.Sprintf(", rate_limit: {unit: hour, requests_per_unit: %d}", n.limit)
		}
		if len(n.below) > 0 {
			text += ", descriptors: " + written(n.below)
		}
		texts = append(texts, text+"}")
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// find searches like the rate limit service: at each entry it takes the exact value, else the first
// wildcard that fits, else the bare key. The limit is the limit of the node at which the entries
// end.
func find(level []*node, entries [][2]string) int {
	fits := func(n *node, entry [2]string, rank int) bool {
		prefix, wild := strings.CutSuffix(n.value, "*")
		switch {
		case n.key != entry[0]:
			return false
		case rank == 0:
			return n.value != "" && !wild && n.value == entry[1]
		case rank == 1:
			return wild && strings.HasPrefix(entry[1], prefix)
		}
		return n.value == ""
	}
	for rank := range 3 {
		i := slices.IndexFunc(level, func(n *node) bool { return fits(n, entries[0], rank) })
		switch {
		case i < 0:
		case len(entries) == 1:
			return level[i].limit
		default:
			return find(level[i].below, entries[1:])
		}
	}
	return 0
}

// holds reports whether a policy is for a descriptor.
func holds(p *policy.Policy, entries [][2]string) bool {
	if len(p.Match.Descriptors) != len(entries) {
		return false
	}
	for i, e := range p.Match.Descriptors {
		value := entries[i][1]
		is := e.Op == policy.HeaderPresent || e.Op == policy.HeaderEquals && value == e.Value ||
			e.Op == policy.HeaderPrefix && strings.HasPrefix(value, e.Value)
		except := slices.ContainsFunc(e.Except, func(x policy.Exception) bool {
			return x.Prefix && strings.HasPrefix(value, x.Value) || !x.Prefix && value == x.Value
		})
		if e.Name != entries[i][0] || !is || except {
			return false
		}
	}
	return true
}

func TestDescriptorsFindTheSameLimit(t *testing.T) {
	limited := 0
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 7))
		tree := generate(random, 1)
		config := "domain: d\ndescriptors: " + written(tree)
		set := importertest.Set(t, service(t, config, ""))
		for range 60 {
			var entries [][2]string
			for range 1 + random.IntN(3) {
				entries = append(entries, [2]string{[]string{"a", "b"}[random.IntN(2)],
					[]string{"x", "y", "xy", "yx", "z"}[random.IntN(5)]})
			}
			want, got, count := int64(find(tree, entries)), int64(0), 0
			for i := range set.Policies {
				if holds(&set.Policies[i], entries) {
					got = set.Policies[i].Limits[0].Quota
					count++
				}
			}
			if got != want || count > 1 {
				t.Fatalf("seed %d, %v: %d policies with a limit of %d, the service finds %d\n%s", seed, entries, count,
					got, want, config)
			}
			if want > 0 {
				limited++
			}
		}
	}
	if limited < 3000 {
		t.Errorf("only %d of 30000 descriptors had a limit", limited)
	}
}

func FuzzRateLimitService(f *testing.F) {
	text, err := os.ReadFile("testdata/ratelimit.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text), global("{remote_address: {}}"))
	f.Add("domain: d\ndescriptors: [{key: '', value: '**'}, {key: a, value: '*', rate_limit: {unit: 1, "+
		"requests_per_unit: -1}}]", "")
	f.Fuzz(func(t *testing.T, config, envoy string) {
		r, err := fromenvoy.RateLimitService([]importer.File{{Name: "c", Text: []byte(config)}},
			[]importer.File{{Name: "e", Text: []byte(envoy)}})
		if err == nil {
			importertest.Set(t, r)
		}
	})
}
