package wasm

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/policy"
)

// token is the node token that the control plane of the tests asks for.
const token = "node-token-of-the-tests"

// limits writes one policy with a partition by header x-key. Rate is QUOTA/WINDOW with an optional
// "burst N"; more is JSON that follows, without braces.
func limits(name, mode, rate string, more ...string) string {
	rate, burst, hasBurst := strings.Cut(rate, " burst ")
	n, window, _ := strings.Cut(rate, "/")
	limit := fmt.Sprintf(`{"quota": %s, "window": %q}`, n, window)
	if hasBurst {
		limit = fmt.Sprintf(`{"quota": %s, "window": %q, "burst": %s}`, n, window, burst)
	}
	fields := append([]string{
		fmt.Sprintf(`"name": %q, "mode": %q, "limit": %s`, name, mode, limit),
	}, more...)
	if !strings.Contains(strings.Join(more, ""), `"partition"`) {
		fields = append(fields, `"partition": ["header:x-key"]`)
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// Parts of policies.
const (
	forAll      = `"partition": []`
	costHeader  = `"cost": {"header": "x-cost", "max": 1000000, "invalid": 1}`
	thenDeny    = `"on_failure": {"then": "deny"}`
	thenAllow   = `"on_failure": {"then": "allow"}`
	dialectsOff = `"headers": {"standard": "off", "legacy": "off"}`
	legacyToo   = `"headers": {"standard": "draft-11", "legacy": "x-ratelimit"}`
)

func setOf(policies ...string) string { return setWith("", policies...) }

// setWith returns a policy set with more fields.
func setWith(more string, policies ...string) string {
	if more != "" {
		more += ", "
	}
	return `{"version": "weir/v1", ` + more + `"policies": [` + strings.Join(policies, ",\n") + `]}`
}

// alone returns the configuration of a filter without a control plane.
func alone(set string) []byte { return []byte(`{"table": {"keys": 1024}, "policyset": ` + set + `}`) }

// decode reads a policy set.
func decode(t testing.TB, text string) *policy.Set {
	t.Helper()
	doc, err := policy.ParseJSON([]byte(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	set, err := policy.Decode(doc)
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return set
}

// start runs the filter; the test fails on any problem that the host sees.
func start(t testing.TB, opt envoytest.Options) *envoytest.Host {
	t.Helper()
	opt.T = t
	h := filter.New(opt)
	t.Cleanup(func() {
		h.Close()
		if lines := warnings(h); t.Failed() && lines != "" {
			t.Log("the log:\n" + lines)
		}
	})
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	return h
}

// warnings returns the last lines of the log that are more than information.
func warnings(h *envoytest.Host) string {
	var lines []string
	for _, l := range h.Logs() {
		if l.Level >= envoytest.Warn {
			lines = append(lines, l.String())
		}
	}
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// get returns a request with more headers, given as name and value in turn.
func get(headers ...string) envoytest.Request {
	r := envoytest.Request{Headers: [][2]string{{":method", "GET"}, {":path", "/v1/items?q=1"},
		{":authority", "api.example.com"}, {":scheme", "https"}}}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Headers = append(r.Headers, [2]string{headers[i], headers[i+1]})
	}
	return r
}

// decision is the filter state weir.decision.
type decision struct {
	refused        bool
	policy, reason string
	retry          int64 // microseconds, -1 if waiting cannot help
	remaining      int64
	delayed        time.Duration
}

func readDecision(t testing.TB, s *envoytest.Stream) (decision, bool) {
	t.Helper()
	text, ok := s.FilterState("wasm.weir.decision")
	if !ok {
		return decision{}, false
	}
	d := decision{retry: -1}
	outcome, fields, _ := strings.Cut(string(text), " ")
	d.refused = outcome == "refused"
	for field := range strings.FieldsSeq(fields) {
		name, value, _ := strings.Cut(field, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		switch name {
		case "policy":
			d.policy, err = value, nil
		case "reason":
			d.reason, err = value, nil
		case "retry_us":
			d.retry = n
		case "remaining":
			d.remaining = n
		case "delayed_us":
			d.delayed = time.Duration(n) * time.Microsecond
		default:
			t.Fatalf("unknown field in the decision %q", text)
		}
		if err != nil {
			t.Fatalf("the decision %q: %v", text, err)
		}
	}
	return d, true
}

// passes sends a request, which the upstream answers, and reports whether it passed. It must not
// wait.
func passes(t testing.TB, h *envoytest.Host, worker int, r envoytest.Request) (bool, *envoytest.Stream) {
	t.Helper()
	s := h.Worker(worker).Request(r)
	switch s.State() {
	case envoytest.Continued:
		s.Respond(200, nil)
		return true, s
	case envoytest.Replied:
		return false, s
	}
	t.Fatalf("the request is %v", s.State())
	return false, s
}

// count sends n requests and returns how many pass.
func count(t testing.TB, h *envoytest.Host, worker, n int, r envoytest.Request) int {
	t.Helper()
	passed := 0
	for range n {
		if ok, _ := passes(t, h, worker, r); ok {
			passed++
		}
	}
	return passed
}

// counter returns one of the filter's Envoy counters, as of the last tick; 0 if it has never
// counted.
func counter(h *envoytest.Host, name string) uint64 {
	value, _ := h.Metric("weir." + name)
	return value
}
