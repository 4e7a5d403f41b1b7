package fromkube_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/fromkube"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/importertest"
	"github.com/weir-proxy/weir/shared/quota"
)

type reader func([]importer.File) (*importer.Result, error)

func imported(t testing.TB, read reader, text string) *importer.Result {
	t.Helper()
	r, err := read([]importer.File{{Name: "objects.yaml", Text: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	importertest.Set(t, r)
	return r
}

// Each marked line of the files has a verdict, and no other line has a verdict.
func TestEachItemHasAVerdict(t *testing.T) {
	for name, read := range map[string]reader{"ingress": fromkube.ImportIngress, "gateway": fromkube.ImportGateway} {
		text, err := os.ReadFile("testdata/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		r := imported(t, read, string(text))
		var lines []int
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasSuffix(line, "# limit") || strings.HasSuffix(line, "# rule") {
				lines = append(lines, i+1)
			}
		}
		if len(lines) < 8 {
			t.Fatalf("%s has only %d items", name, len(lines))
		}
		importertest.Account(t, r, lines)
		golden := "testdata/" + name + ".txt"
		got := string(r.Document) + "\n" + importertest.Verdicts(r)
		if os.Getenv("WEIR_UPDATE_GOLDEN") != "" {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if want, err := os.ReadFile(golden); err != nil || string(want) != got {
			t.Errorf("%v: differs from %s:\n%s", err, golden, got)
		}
	}
}

// ingress is an ingress with annotations.
func ingress(annotations string) string {
	return "kind: Ingress\nmetadata: {name: a, annotations: {" + annotations +
		"}}\nspec: {defaultBackend: {service: {name: b}}}\n"
}

const prefix = "nginx.ingress.kubernetes.io/"

func TestIngress(t *testing.T) {
	for _, c := range []struct{ annotations, want string }{
		{prefix + "limit-rps: '10'",
			"limit: {quota: 10, window: 1s, burst: 51}\n    mode: local\n    response:\n      status: 503"},
		{prefix + "limit-rpm: 60, " + prefix + "limit-burst-multiplier: '1'",
			"limit: {quota: 60, window: 1m, burst: 61}"},
		{prefix + "limit-rps: 1, " + prefix + "limit-rpm: 30",
			"limit:\n      - {quota: 1, window: 1s, burst: 6}\n      - {quota: 30, window: 1m, burst: 151}"},
		{prefix + "limit-rps: 10, " + prefix + "limit-whitelist: 10.0.0.0/8", "exempt:\n  client_ips: [10.0.0.0/8]"},
		{prefix + "limit-rps: '0'", "policies: []"},
		{prefix + "limit-connections: 20",
			"limit: {in_flight: 20}\n    max_hold: forever\n    mode: local\n    response:\n      status: 503"},
	} {
		if r := imported(t, fromkube.ImportIngress,
			ingress(c.annotations)); !strings.Contains(string(r.Document), c.want) {
			t.Errorf("%s: want\n%s\nin\n%s%s", c.annotations, c.want, r.Document, importertest.Verdicts(r))
		}
	}
}

// bucket is the token bucket that ingress-nginx has for an address: n requests a window. After the
// first request it lets n times the multiplier through at once.
type bucket struct{ excess, last, n, window, burst int64 }

func (b *bucket) take(at int64) bool {
	// The unit is a part of a request: a microsecond earns n parts, and a request is window parts.
	excess := max(0, b.excess-(at-b.last)*b.n+b.window)
	if b.last == 0 {
		excess = 0
	}
	if excess > b.burst*b.window {
		return false
	}
	b.excess, b.last = excess, at
	return true
}

// If no pattern expresses a path, only that path is left out; the limits of all other paths stay.
func TestAPathOfAnIngressIsLeftOut(t *testing.T) {
	const head = "metadata:\n  name: x\n  annotations:\n    nginx.ingress.kubernetes.io/use-regex: \"true\"\n" +
		"    nginx.ingress.kubernetes.io/limit-rps: \"5\"\n" +
		"    nginx.ingress.kubernetes.io/limit-whitelist: 10.0.0.0/8\n"
	const begin = "apiVersion: networking.k8s.io/v1\nkind: Ingress\n" + head + "spec:\n  rules:\n"
	const odd = "  - {host: a.example, http: {paths: [{path: '/api(/|$)(.*)', pathType: ImplementationSpecific}]}}\n"
	const plain = "  - {host: b.example, http: {paths: [{path: /b, pathType: Exact}]}}\n"
	const left = "path /api(/|$)(.*): no pattern of Weir takes the same paths as this expression"
	both := imported(t, fromkube.ImportIngress, begin+odd+plain)
	said := importertest.Verdicts(both)
	if !strings.Contains(said, "approximate: Ingress x: limit-rps: 5: left out there: "+left) ||
		!strings.Contains(string(both.Document), "paths: [/b]") ||
		strings.Contains(string(both.Document), "hosts: [a.example") {
		t.Errorf("%s\n%s", said, both.Document)
	}
	wrong := imported(t, fromkube.ImportIngress, strings.Replace(begin, `"5"`, "many", 1)+plain)
	if strings.Contains(string(wrong.Document), "exempt") {
		t.Errorf("a limit that is none exempts:\n%s", wrong.Document)
	}
	none := imported(t, fromkube.ImportIngress, begin+odd)
	if said := importertest.Verdicts(none); !strings.Contains(said, "not possible: Ingress x: limit-rps: 5: "+left) ||
		strings.Contains(string(none.Document), "exempt") {
		t.Errorf("%s\n%s", said, none.Document)
	}
}

func TestIngressDecidesAlike(t *testing.T) {
	for _, n := range []int64{1, 3, 20} {
		for _, multiplier := range []int64{1, 5} {
			for seed := range uint64(10) {
				want := &bucket{n: n, window: 60_000_000, burst: n * multiplier}
				text := ingress(fmt.Sprintf("%slimit-rpm: %d, %slimit-burst-multiplier: %d", prefix, n, prefix,
					multiplier))
				got := importertest.NewBucket(t, importertest.Set(t, imported(t, fromkube.ImportIngress, text)),
					"ingress-default-a")
				refused := 0
				for i, at := range importertest.Moments(seed, 1_000_000, 1000, quota.Span(300/n)*quota.Second) {
					allowed := want.take(int64(at))
					if is, _ := got.Take(at); is != allowed {
						t.Fatalf("%d r/m times %d, seed %d, request %d: allowed %t, nginx %t", n, multiplier, seed, i,
							is, allowed)
					}
					if !allowed {
						refused++
					}
				}
				if refused < 20 || refused > 980 {
					t.Errorf("%d r/m times %d, seed %d: %d of 1000 refused proves little", n, multiplier, seed, refused)
				}
			}
		}
	}
}

// gatewaysRule is a policy of Envoy Gateway with one rule, for a route without conditions.
func gatewaysRule(kind, rule string) string {
	return "kind: HTTPRoute\nmetadata: {name: r}\nspec: {rules: [{matches: [{path: {value: /}}]}]}\n---\n" +
		"kind: BackendTrafficPolicy\nmetadata: {name: p}\n" +
		"spec: {targetRefs: [{kind: HTTPRoute, name: r}], rateLimit: {" + kind + ": {rules: [{" + rule + "}]}}}\n"
}

func TestGateway(t *testing.T) {
	for _, c := range []struct{ kind, rule, want string }{
		{"global", "limit: {requests: 5, unit: Hour}",
			"partition: []\n    algorithm: fixed_window\n    align: utc\n    limit: {quota: 5, window: 1h}\n" +
				"    mode: strict\n    on_failure: [allow]"},
		{"local", "limit: {requests: 5, unit: Minute}",
			"partition: []\n    limit: {quota: 5, window: 1m}\n    mode: local"},
		{"global", "limit: {requests: 5, unit: Hour}, clientSelectors: [{headers: [{name: X-User, type: Distinct}]}]",
			"partition: ['header:x-user']"},
		{"global", "limit: {requests: 5, unit: Hour}, clientSelectors: [{headers: [{name: X-User, value: a}]}, " +
			"{methods: [{value: GET}]}]",
			"methods: [GET]\n      headers:\n        - {name: x-user, equals: a}\n    partition: []"},
		{"global", "limit: {requests: 5, unit: Hour}, clientSelectors: [{sourceCIDR: {value: 192.0.2.0/24, type: " +
			"Distinct}}]", "client_ips: [192.0.2.0/24]\n    partition: [client_ip]"},
		{"global", "limit: {requests: 5, unit: Hour}, clientSelectors: [{path: {type: Exact, value: /a}}]",
			"paths: [/a]"},
		{"global", "limit: {requests: 5, unit: Hour}, cost: {request: {from: Number, number: 3}}", "cost: 3"},
		{"global", "limit: {requests: 5, unit: Hour}, cost: {request: {from: Number, number: 0}, " +
			"response: {from: Metadata, metadata: {namespace: ai.eg, key: tokens}}}",
			"cost: {reserve: 1, commit: {metadata: ai.eg/tokens}, missing: 0}"},
	} {
		if r := imported(t, fromkube.ImportGateway,
			gatewaysRule(c.kind, c.rule)); !strings.Contains(string(r.Document), c.want) {
			t.Errorf("%s: want\n%s\nin\n%s%s", c.rule, c.want, r.Document, importertest.Verdicts(r))
		}
	}
}

func FuzzImport(f *testing.F) {
	for _, name := range []string{"ingress", "gateway"} {
		text, err := os.ReadFile("testdata/" + name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add(ingress(prefix + "limit-rps: 4294967296, " + prefix + "limit-burst-multiplier: 65536"))
	f.Add(ingress(prefix + "limit-rps: 1, " + prefix + "limit-whitelist: '::/0,,x'"))
	f.Add(gatewaysRule("local", "limit: {requests: -1, unit: Year}, clientSelectors: [{sourceCIDR: {value: '::1', "+
		"type: Distinct}}]"))
	f.Fuzz(func(t *testing.T, text string) {
		for _, read := range []reader{fromkube.ImportIngress, fromkube.ImportGateway} {
			r, err := read([]importer.File{{Name: "objects.yaml", Text: []byte(text)}})
			if err == nil {
				importertest.Set(t, r)
			}
		}
	})
}
