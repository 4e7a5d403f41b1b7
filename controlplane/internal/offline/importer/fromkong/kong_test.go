package fromkong_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/fromkong"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/importertest"
	"github.com/weir-proxy/weir/shared/quota"
)

func imported(t testing.TB, text string) *importer.Result {
	t.Helper()
	r, err := fromkong.Import([]importer.File{{Name: "kong.yaml", Text: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	importertest.Set(t, r)
	return r
}

// plugin is a configuration with one plugin for all services.
func plugin(name, config string) string {
	return "_format_version: '3.0'\nplugins:\n- name: " + name + "\n  config: {" + config + "}\n"
}

func TestPolicies(t *testing.T) {
	for _, c := range []struct{ config, want string }{
		{"minute: 5, limit_by: ip", "partition: [client_ip]\n    algorithm: fixed_window\n    align: utc\n" +
			"    limit: {quota: 5, window: 1m}\n    mode: local"},
		{"second: 5, hour: 100, limit_by: ip, policy: redis",
			"limit:\n      - {quota: 5, window: 1s}\n      - {quota: 100, window: 1h}\n    mode: strict\n" +
				"    on_failure: [allow]"},
		{"day: 5, policy: cluster, fault_tolerant: false", "on_failure: [deny]"},
		{"minute: 5, limit_by: consumer", "partition: [client_ip]"}, // No plugin finds consumers.
		{"minute: 5, limit_by: header, header_name: X-Tenant", `partition: ['header:x-tenant']`},
		{"minute: 5, limit_by: header, header_name: X-Tenant",
			"- {name: x-tenant, absent: true}\n    partition: [client_ip]"},
		{"minute: 5, limit_by: path, path: /login", "paths: [/login]\n    partition: []"},
		{"minute: 5, error_code: 503, error_message: 'Slow, please'", `status: 503` + "\n" + `      body: '{"message":"Slow, please"}'`},
		{"minute: 5, error_message: 'Wait {limit} {{word}}'", `'{"message":"Wait \u007blimit} \u007b\u007bword}}"}'`},
		{"minute: 5, hide_client_headers: true", `headers: {standard: "off"}`},
		{"minute: 5, hide_client_headers: false", `headers: {standard: "off", legacy: ratelimit}`},
	} {
		r := imported(t, plugin("rate-limiting", c.config))
		doc := string(r.Document)
		if !strings.Contains(doc, c.want) {
			t.Errorf("{%s}: want\n%s\nin\n%s", c.config, c.want, r.Document)
		}
	}
}

// A request meets one instance of a plugin, the most specific, and so each route is in one policy.
func TestTheMostSpecificInstanceRuns(t *testing.T) {
	r := imported(t, `
services:
- name: shop
  plugins: [{name: rate-limiting, config: {minute: 10, limit_by: ip}}]
  routes:
  - {name: items, paths: [/items/]}
  - {name: carts, paths: [/carts/]}
  - {name: login, paths: [/login/], plugins: [{name: rate-limiting, config: {minute: 2, limit_by: ip}}]}
  - {name: all, paths: [/], plugins: [{name: rate-limiting, enabled: false, config: {minute: 3, limit_by: ip}}]}
- name: other
  routes: [{name: other, hosts: [other.example.com]}]
plugins:
- {name: rate-limiting, config: {minute: 100, limit_by: ip}}
`)
	want := map[string]string{
		"kong-shop": "/items/**,/carts/**", "kong-login": "/login/**", "kong-all": "/**", "kong": "",
	}
	for _, p := range importertest.Set(t, r).Policies {
		if got := strings.Join(p.Match.Paths, ","); got != want[p.Name] {
			t.Errorf("%s is for %s, want %s", p.Name, got, want[p.Name])
		}
		delete(want, p.Name)
		if p.Name == "kong" && strings.Join(p.Match.Hosts, ",") != "other.example.com" {
			t.Errorf("kong is for the hosts %s", p.Match.Hosts)
		}
		if p.Name == "kong-all" && p.Enforced.String() != "off" {
			t.Errorf("a plugin that is switched off became %s", p.Enforced)
		}
	}
	if len(want) > 0 {
		t.Errorf("no policies %v:\n%s", want, r.Document)
	}
}

func TestConsumersHaveLimitsOfTheirOwn(t *testing.T) {
	r := imported(t, `
plugins:
- {name: key-auth, config: {key_names: [X-Api-Key]}}
- {name: rate-limiting, config: {minute: 10, policy: redis}}
consumers:
- username: acme
  keyauth_credentials: [{key: acme-1}, {key: "acme,2"}]
  plugins: [{name: rate-limiting, config: {second: 50, minute: 1000, policy: redis}}]
- username: unknown
  plugins: [{name: rate-limiting, config: {minute: 1000, policy: redis}}]
`)
	want := `id,source,overrides
acme-1,header:x-api-key,"[{""policy"":""kong"",""limit"":[{""quota"":50,""window"":""1s""},{""quota"":1000,""window"":""1m""}]}]"
"acme,2",header:x-api-key,"[{""policy"":""kong"",""limit"":[{""quota"":50,""window"":""1s""},{""quota"":1000,""window"":""1m""}]}]"
`
	if string(r.Consumers) != want {
		t.Errorf("%s\nwant\n%s", r.Consumers, want)
	}
	verdicts := importertest.Verdicts(r)
	for _, text := range []string{
		"approximate: rate-limiting of consumer acme: second: 50: Kong has one counter for all keys",
		"not possible: rate-limiting of consumer unknown: minute: 1000: the file has no key of this consumer",
	} {
		if !strings.Contains(verdicts, text) {
			t.Errorf("want %q in\n%s", text, verdicts)
		}
	}
	if strings.Contains(string(r.Document)+verdicts, "acme-1") {
		t.Error("a key is in the policy set or in a verdict")
	}
}

// The two plugins write "ask at each request" with different figures, and one of them keeps its
// counters to itself with the other's.
func TestHowOftenNodesAgree(t *testing.T) {
	const advanced = "limit: [5], window_size: [60], strategy: redis, "
	for _, c := range []struct{ plugin, config, mode, verdict string }{
		{"rate-limiting", "minute: 5, policy: redis, sync_rate: -1", "strict", "exact"},
		{"rate-limiting", "minute: 5, policy: redis, sync_rate: 0.5", "strict", "approximate"},
		{"rate-limiting-advanced", advanced + "sync_rate: 0", "strict", "exact"},
		{"rate-limiting-advanced", advanced + "sync_rate: 2", "strict", "approximate"},
		{"rate-limiting-advanced", advanced + "sync_rate: -1", "local", "exact"},
	} {
		r := imported(t, "plugins: [{name: "+c.plugin+", config: {"+c.config+"}}]")
		verdicts := importertest.Verdicts(r)
		at := strings.Index(verdicts, "sync_rate: ")
		if at < 0 || !strings.Contains(string(r.Document), "mode: "+c.mode) {
			t.Errorf("%s {%s}: want mode %s:\n%s%s", c.plugin, c.config, c.mode, r.Document, verdicts)
			continue
		}
		line := verdicts[strings.LastIndexByte(verdicts[:at], '\n')+1 : at]
		if !strings.Contains(line, c.verdict+": ") {
			t.Errorf("%s {%s}: %s, want %s", c.plugin, c.config, line, c.verdict)
		}
	}
}

// Limits of consumer groups and of Kubernetes' resources are left out, and named wherever they
// stand.
func TestWhatIsLeftOutIsNamed(t *testing.T) {
	r := imported(t, `
consumer_groups:
- name: gold
  plugins: [{name: rate-limiting-advanced, config: {limit: [100], window_size: [60]}}]
consumer_group_plugins:
- {name: rate-limiting-advanced, consumer_group: silver, config: {limit: [5], window_size: [60]}}
---
apiVersion: configuration.konghq.com/v1
kind: KongPlugin
metadata: {name: five}
plugin: rate-limiting
config: {minute: 5}
---
kind: List
items:
- {kind: KongClusterPlugin, metadata: {name: all}, plugin: rate-limiting-advanced, config: {limit: [5]}}
- {kind: KongPlugin, metadata: {name: keys}, plugin: key-auth}
- {kind: KongConsumer, metadata: {name: a}, username: a}
`)
	const group = ": make the group a tier"
	const resource = ": resources of Kubernetes are not read"
	verdicts := importertest.Verdicts(r)
	for _, text := range []string{
		"not possible: rate-limiting-advanced of consumer group gold: limit 100 in window_size 60" + group,
		"not possible: rate-limiting-advanced of consumer group silver: limit 5 in window_size 60" + group,
		"not possible: rate-limiting of KongPlugin five" + resource,
		"not possible: rate-limiting-advanced of KongClusterPlugin all" + resource,
	} {
		if !strings.Contains(verdicts, text) {
			t.Errorf("want %q in\n%s", text, verdicts)
		}
	}
	if n := strings.Count(verdicts, "not possible"); n != 4 {
		t.Errorf("%d verdicts, want 4:\n%s", n, verdicts)
	}
}

// Each setting of a plugin that limits has a verdict, and nothing else has a verdict.
func TestEachItemHasAVerdict(t *testing.T) {
	text, err := os.ReadFile("testdata/kong.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r := imported(t, string(text))
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	lines := settings(root.Content[0])
	if len(lines) < 35 {
		t.Fatalf("the file has only %d settings", len(lines))
	}
	importertest.Account(t, r, lines)
	if got := importertest.Verdicts(r); os.Getenv("WEIR_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile("testdata/kong.txt", []byte(string(r.Document)+"\n"+got), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want, err := os.ReadFile("testdata/kong.txt"); err != nil || string(want) != string(r.Document)+"\n"+got {
		t.Errorf("%v: differs from testdata/kong.txt:\n%s\n%s", err, r.Document, got)
	}
}

// settings are the lines of all settings of plugins whose name says that they limit.
func settings(n *yaml.Node) (lines []int) {
	if n.Kind == yaml.MappingNode {
		name, config := field(n, "name"), field(n, "config")
		if name != nil && config != nil && strings.Contains(name.Value, "rate") &&
			strings.Contains(name.Value, "limiting") {
			for i := 0; i < len(config.Content); i += 2 {
				switch key := config.Content[i]; {
				case strings.HasPrefix(name.Value, "response"), strings.HasPrefix(name.Value, "graphql"):
					return []int{n.Line}
				case key.Value == "window_size": // Named with limit.
				case config.Content[i+1].Tag != "!!null":
					lines = append(lines, key.Line)
				}
			}
			for _, key := range []string{"protocols", "ordering"} {
				if field(n, key) != nil {
					lines = append(lines, field(n, key).Line)
				}
			}
			return lines
		}
	}
	for _, item := range n.Content {
		lines = append(lines, settings(item)...)
	}
	return lines
}

func field(n *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(n.Content) && n.Kind == yaml.MappingNode; i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

// kongsWindows counts as Kong does, for each period in the current part of the UTC calendar. It
// refuses if one of the counters is at its limit, and counts a request that passes in all counters.
type kongsWindows struct {
	limits map[string]int64
	counts map[string]int64
}

func (k *kongsWindows) take(at quota.Instant) bool {
	layouts := map[string]string{"second": time.DateTime, "minute": "2006-01-02 15:04", "hour": "2006-01-02 15",
		"day": time.DateOnly}
	var keys []string
	for period, limit := range k.limits {
		key := period + " " + time.UnixMicro(int64(at)).UTC().Format(layouts[period])
		if k.counts[key] >= limit {
			return false
		}
		keys = append(keys, key)
	}
	for _, key := range keys {
		k.counts[key]++
	}
	return true
}

func TestKongsWindowsDecideAlike(t *testing.T) {
	start := quota.Instant(time.Date(2026, 11, 22, 22, 58, 7, 300_000_000, time.UTC).UnixMicro())
	for seed := range uint64(20) {
		k := &kongsWindows{map[string]int64{"second": 3, "minute": 20, "hour": 90, "day": 400}, map[string]int64{}}
		r := imported(t, plugin("rate-limiting", "second: 3, minute: 20, hour: 90, day: 400, limit_by: ip"))
		bucket := importertest.NewBucket(t, importertest.Set(t, r), "kong")
		refused := 0
		for i, at := range importertest.Moments(seed, start, 3000, 90*quota.Second) {
			want := k.take(at)
			if got, _ := bucket.Take(at); got != want {
				t.Fatalf("seed %d, request %d at %s: allowed %t, Kong %t", seed, i, time.UnixMicro(int64(at)).UTC(),
					got, want)
			}
			if !want {
				refused++
			}
		}
		if refused < 100 || refused > 2900 {
			t.Errorf("seed %d: %d of 3000 refused proves little", seed, refused)
		}
	}
}

func TestSyntaxErrorsSayWhere(t *testing.T) {
	for text, want := range map[string]string{
		"a: [1":                    "kong.yaml:1: is not YAML",
		"plugins:\n- name: x\n y:": "kong.yaml:",
		strings.Repeat("[", 200) + strings.Repeat("]", 200): "nest deeper than 100 levels",
	} {
		_, err := fromkong.Import([]importer.File{{Name: "kong.yaml", Text: []byte(text)}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %s", text, err, want)
		}
	}
}

func FuzzImport(f *testing.F) {
	text, err := os.ReadFile("testdata/kong.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	for _, config := range []string{"minute: -1", "minute: 1e300", "second: 9007199254740993, limit_by: {}",
		"limit: [1, 2], window_size: 3"} {
		f.Add(plugin("rate-limiting", config))
		f.Add(plugin("rate-limiting-advanced", config))
	}
	for i, path := range []string{"~/(?<x>[^/]+", "~", "/%zz", "~/a/[", "~^/\\"} {
		f.Add(fmt.Sprintf("routes: [{name: r%d, paths: ['%s'], plugins: [{name: rate-limiting, config: {minute: 1}}]}]",
			i, path))
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := fromkong.Import([]importer.File{{Name: "kong.yaml", Text: []byte(text)}})
		if err == nil {
			importertest.Set(t, r)
		}
	})
}
