package respond_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/answer/respond"
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/filter/internal/load/overload"
	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	now  = quota.Instant(1000 * quota.Second)
	wall = int64(1_800_000_000) * int64(quota.Second)
)

// decide makes n requests against a document and returns the last request with its status.
func decide(t *testing.T, doc string, n int, headers ...string) (*limiter.Request, limiter.Status) {
	t.Helper()
	node, err := policy.ParseJSON([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	set, err := policy.Decode(node)
	if err != nil {
		t.Fatal(err)
	}
	rules := &ruleset.Rules{}
	if err := rules.Index.Load(wire.AppendSnapshot(nil, wire.Snapshot{Set: set})); err != nil {
		t.Fatal(err)
	}
	data := &shareddatatest.Data{}
	flights := inflight.New(data, shareddata.Space{}, 1024, 1)
	l := limiter.New(limiter.Config{
		Store: bucketstore.New(data, [4]byte{}, 1024, 0), Flights: flights,
		Guards: overload.New(data, shareddata.Space{}, flights),
	})
	a := match.Attributes{Method: []byte("GET"), Path: []byte("/")}
	for i := 0; i < len(headers); i += 2 {
		a.Headers = append(a.Headers, match.Header{Name: []byte(headers[i]), Value: []byte(headers[i+1])})
	}
	var req *limiter.Request
	var status limiter.Status
	for range n {
		req = &limiter.Request{}
		status = l.Begin(req, rules, &a, now)
	}
	return req, status
}

func lines(h *respond.Headers) string {
	var b strings.Builder
	for i := range h.Len() {
		name, value := h.At(i)
		b.WriteString(name + ": " + string(value) + "\n")
	}
	return b.String()
}

const two = `"policies":[
	{"name":"a","partition":[],"limit":{"quota":100,"window":"1m"}},
	{"name":"b","partition":[],"limit":{"quota":3,"window":"1h"}}]}`

func TestSeveralLimitsAreNamedByTheirWindows(t *testing.T) {
	req, _ := decide(t, `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":[{"quota":5,"window":"1s"},{"quota":100,"window":"1m"}],"mode":"local"}]}`, 1)
	var h respond.Headers
	h.Limits(req, false, 0, wall)
	want := "ratelimit-policy: \"p.1s\";q=5;w=1,\"p.1m\";q=100;w=60\nratelimit: \"p.1s\";r=4;t=1,\"p.1m\";r=99;t=1\n"
	if lines(&h) != want {
		t.Errorf("got\n%s\nwant\n%s", lines(&h), want)
	}
}

// Limits that count in windows say their quota and window; the time to full is that until nothing
// counts any more.
func TestWindowsAndQueues(t *testing.T) {
	for _, c := range []struct {
		policy, headers, decision string
		n                         int
		status                    limiter.Status
	}{
		{`"algorithm":"sliding_log","limit":{"quota":3,"window":"1h"}`, "ratelimit-policy: \"p\";q=3;w=3600\nratelimit: \"p\";r=1;t=3600\n",
			"allowed policy=p remaining=1", 2, limiter.Allowed},
		{`"algorithm":"sliding_log","limit":{"quota":3,"window":"1h"}`, "ratelimit-policy: \"p\";q=3;w=3600\nratelimit: \"p\";r=0;t=3600\n",
			"refused policy=p reason=quota retry_us=3600000000 remaining=0", 4, limiter.Refused},
		{`"algorithm":"leaky_bucket","mode":"local","max_wait":"1m","limit":{"quota":1,"window":"2s","burst":4}`,
			"ratelimit-policy: \"p\";q=5;w=10\nratelimit: \"p\";r=2;t=2\n",
			"allowed policy=p remaining=2 delayed_us=4000000", 3, limiter.Delayed},
	} {
		req, status := decide(t, `{"version":"weir/v1","policies":[{"name":"p","partition":[],`+c.policy+`}]}`, c.n)
		var h respond.Headers
		h.Limits(req, status == limiter.Refused, 0, wall) // Refusal.Write says the wait.
		decision := string(respond.AppendDecision(nil, req, status))
		if status != c.status || lines(&h) != c.headers || decision != c.decision {
			t.Errorf("%v %q\n%s\nwant %q\n%s", status, decision, lines(&h), c.decision, c.headers)
		}
	}
}

// A limit of requests in flight has a unit in place of a window, and nothing says when one ends.
func TestRequestsInFlight(t *testing.T) {
	const set = `{"version":"weir/v1","headers":{"legacy":"x-ratelimit"},"policies":[
		{"name":"p","partition":[],"limit":[{"quota":50,"window":"1m"},{"in_flight":3}],"mode":"local"},
		{"name":"alone","partition":[],"limit":{"in_flight":9},"mode":"local"}]}`
	req, status := decide(t, set, 2)
	var h respond.Headers
	h.Limits(req, false, 0, wall)
	want := "x-ratelimit-limit: 3\nx-ratelimit-remaining: 1\nx-ratelimit-reset: 1800000000\n" +
		"ratelimit-policy: " +
		"\"p.1m\";q=50;w=60,\"p.in_flight\";q=3;qu=\"concurrent-requests\",\"alone\";q=9;qu=\"concurrent-requests\"\n" +
		"ratelimit: \"p.1m\";r=48;t=3,\"p.in_flight\";r=1,\"alone\";r=7\n"
	if status != limiter.Allowed || lines(&h) != want {
		t.Errorf("%v\n%s\nwant\n%s", status, lines(&h), want)
	}
	req, status = decide(t, set, 4)
	var r respond.Refusal
	r.Write(req, now, wall, false)
	want = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,` +
		`"detail":"Policy p allows 3 requests at the same time, and all places are in use. Try again in 1 second.",` +
		`"violated-policies":["p.in_flight"],"limit":3,"retry_after":1}` + "\n"
	if status != limiter.Refused || r.Status != 429 || string(r.Body) != want {
		t.Errorf("%v %d\n%s\nwant\n%s", status, r.Status, r.Body, want)
	}
	if got := lines(&r.Headers); !strings.Contains(got, "retry-after: 1\n") ||
		!strings.Contains(got, "\"p.in_flight\";r=0,") {
		t.Error(got)
	}
	if got := string(respond.AppendDecision(nil, req, status)); got != "refused policy=p reason=in_flight "+
		"retry_us=1000000 remaining=0" {
		t.Error(got)
	}
}

// The answer to a request that is shed says when to come again, not how much there is: that is
// another figure at each moment.
func TestShed(t *testing.T) {
	const set = `{"version":"weir/v1","headers":{"legacy":"x-ratelimit"},"policies":[
		{"name":"p","partition":[],"adaptive":{"min":2,"max":2},"mode":"local"}]}`
	req, status := decide(t, set, 2)
	var h respond.Headers
	if h.Limits(req, false, 0, wall); status != limiter.Allowed || lines(&h) != "" {
		t.Errorf("%v\n%s", status, lines(&h))
	}
	req, status = decide(t, set, 3)
	var r respond.Refusal
	r.Write(req, now, wall, false)
	pattern := regexp.MustCompile(`^\{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",` +
		`"title":"Temporarily Reduced Capacity","status":503,` +
		`"detail":"What policy p protects has more to do than it can. Try again in [1-4] seconds?.",` +
		`"violated-policies":\["p"\],"retry_after":[1-4]\}\n$`)
	if status != limiter.Refused || r.Status != 503 || r.GRPC != 14 || !pattern.Match(r.Body) {
		t.Errorf("%v %d %d\n%s", status, r.Status, r.GRPC, r.Body)
	}
	if got := lines(&r.Headers); !strings.HasPrefix(got, "retry-after: ") || strings.Count(got, "ratelimit") != 1 ||
		!strings.Contains(got, "x-envoy-ratelimited: true\n") {
		t.Error(got)
	}
	if got := string(respond.AppendDecision(nil, req, status)); !strings.HasPrefix(got,
		"refused policy=p reason=shed retry_us=") {
		t.Error(got)
	}
}

// A refusal says of which tier the limit is.
func TestRefusalNamesTheTier(t *testing.T) {
	req, status := decide(t, `{"version":"weir/v1","identity":{"tier":[{"header":"x-tier","trusted":true}],"default_tier":"free"},"tiers":["free","premium"],
		"policies":[{"name":"p","partition":[],"limits":{"free":{"quota":1,"window":"1m"},"premium":{"quota":2,"window":"1m"}}}]}`, 3, "x-tier", "premium")
	var r respond.Refusal
	r.Write(req, now, wall, false)
	var body struct{ Tier string }
	if err := json.Unmarshal(r.Body, &body); err != nil || status != limiter.Refused || body.Tier != "premium" {
		t.Errorf("%v %v: %s", status, err, r.Body)
	}
}

func TestAllowed(t *testing.T) {
	for dialects, want := range map[string]string{
		`"headers":{"standard":"draft-11"}`:                   "ratelimit-policy: \"a\";q=100;w=60,\"b\";q=3;w=3600\nratelimit: \"a\";r=98;t=2,\"b\";r=1;t=2400\n",
		`"headers":{"standard":"off","legacy":"x-ratelimit"}`: "x-ratelimit-limit: 3\nx-ratelimit-remaining: 1\nx-ratelimit-reset: 1800002400\n",
		`"headers":{"standard":"off","legacy":"envoy"}`:       "x-ratelimit-limit: 3, 100;w=60;name=\"a\", 3;w=3600;name=\"b\"\nx-ratelimit-remaining: 1\nx-ratelimit-reset: 2400\n",
		`"headers":{"standard":"off","legacy":"github"}`:      "x-ratelimit-limit: 3\nx-ratelimit-remaining: 1\nx-ratelimit-reset: 1800002400\nx-ratelimit-used: 2\nx-ratelimit-resource: b\n",
		`"headers":{"legacy":"ratelimit"}`:                    "ratelimit-limit: 3\nratelimit-remaining: 1\nratelimit-reset: 2400\n",
		`"headers":{"standard":"off"}`:                        "",
	} {
		req, status := decide(t, `{"version":"weir/v1",`+dialects+`,`+two, 2)
		var h respond.Headers
		h.Limits(req, false, 0, wall)
		if status != limiter.Allowed || lines(&h) != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", dialects, status, lines(&h), want)
		}
	}
}

func TestRefused(t *testing.T) {
	req, status := decide(t, `{"version":"weir/v1","headers":{"legacy":"x-ratelimit"},`+two, 4)
	if status != limiter.Refused {
		t.Fatal(status)
	}
	var r respond.Refusal
	r.Write(req, now, wall, false)
	var problem struct {
		Type, Title, Detail, Window string
		Status, Limit               int
		Violated                    []string `json:"violated-policies"`
		Retry                       int64    `json:"retry_after"`
	}
	if err := json.Unmarshal(r.Body, &problem); err != nil {
		t.Fatalf("%s: %v", r.Body, err)
	}
	if r.Status != 429 || problem.Status != 429 ||
		problem.Type != "https://iana.org/assignments/http-problem-types#quota-exceeded" ||
		problem.Limit != 3 || problem.Window != "1h" || len(problem.Violated) != 1 || problem.Violated[0] != "b" ||
		problem.Retry < 1200 || problem.Retry > 1320 || !strings.Contains(problem.Detail, "Policy b allows 3 per 1h") {
		t.Errorf("%d %+v", r.Status, problem)
	}
	got := lines(&r.Headers)
	for _, want := range []string{"cache-control: no-store\n", "content-type: application/problem+json\n",
		"x-ratelimit-limit: 3\n", "x-ratelimit-remaining: 0\n",
		fmt.Sprintf("x-ratelimit-reset: %d\n", 1_800_000_000+problem.Retry),
		fmt.Sprintf("ratelimit: \"a\";r=97,\"b\";r=0;t=%d\n", problem.Retry)} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if string(respond.AppendDecision(nil, req, status)) != "refused policy=b reason=quota retry_us=1200000000 "+
		"remaining=0" {
		t.Errorf("decision %s", respond.AppendDecision(nil, req, status))
	}
	r.Write(req, now, wall, true)
	said := "Policy b allows 3 per 1h, and that is used up. Try again in "
	if !strings.HasPrefix(string(r.Body), said) || r.GRPC != 8 || strings.Contains(lines(&r.Headers), "content-type") {
		t.Errorf("to gRPC: status %d, body %s, headers\n%s", r.GRPC, r.Body, lines(&r.Headers))
	}
}

func TestOtherRefusals(t *testing.T) {
	const doc = `{"version":"weir/v1","policies":[{"name":"p","partition":["header:x-who"],"if_absent":"deny","limit":{"quota":3,"window":"1h"},"cost":{"header":"x-cost","max":9,"invalid":"deny"}}]}`
	for _, c := range []struct {
		headers    []string
		status     uint32
		retryAfter bool
	}{
		{nil, 403, false},
		{[]string{"x-who", "me"}, 400, false},
		{[]string{"x-who", "me", "x-cost", "4"}, 429, false},
	} {
		req, _ := decide(t, doc, 1, c.headers...)
		var r respond.Refusal
		r.Write(req, now, wall, false)
		if r.Status != c.status || strings.Contains(lines(&r.Headers), "retry-after") != c.retryAfter ||
			!json.Valid(r.Body) {
			t.Errorf("%q: %d %s\n%s", c.headers, r.Status, r.Body, lines(&r.Headers))
		}
	}
}

// Refusals with 429, and refusals of shed requests, are marked for Envoys in front, unless the
// policy set forbids it; other refusals are not.
func TestRefusalsAreMarked(t *testing.T) {
	for headers, marks := range map[string]bool{
		`{}`: true, `{"envoy_ratelimited":"on"}`: true, `{"envoy_ratelimited":true}`: true,
		`{"envoy_ratelimited":"off"}`: false, `{"envoy_ratelimited":false}`: false,
	} {
		for policies, limited := range map[string]bool{
			`{"name":"p","partition":[],"limit":{"quota":1,"window":"1h"},"response":{"status":503,"body":"no"}}`: true,
			`{"name":"p","partition":[],"adaptive":{"min":2,"max":2},"mode":"local"}`:                             true,
			`{"name":"p","partition":["header:x"],"if_absent":"deny","limit":{"quota":1,"window":"1h"}}`:          false,
		} {
			req, status := decide(t, `{"version":"weir/v1","headers":`+headers+`,"policies":[`+policies+`]}`, 3)
			var r respond.Refusal
			r.Write(req, now, wall, false)
			got := strings.Contains(lines(&r.Headers), "x-envoy-ratelimited: true\n")
			if status != limiter.Refused || got != (marks && limited) {
				t.Errorf("%s %s: %v, marked %v\n%s", headers, policies, status, got, lines(&r.Headers))
			}
		}
	}
}

// The answer to each reason as the pages have it, for a request that can pass in 7 s where waiting
// helps.
func TestTheAnswerToEachReason(t *testing.T) {
	type answer struct {
		status                uint32
		kind                  string
		waits, marked, usedUp bool
	}
	const quotaExceeded, reduced, plain = "#quota-exceeded", "#temporary-reduced-capacity", "about:blank"
	rows := map[policy.Reason]answer{
		policy.ReasonQuota:          {429, quotaExceeded, true, true, true},
		policy.ReasonTooDear:        {429, quotaExceeded, false, true, false},
		policy.ReasonAbsent:         {403, plain, false, false, false},
		policy.ReasonBadCost:        {400, plain, false, false, false},
		policy.ReasonFailure:        {429, reduced, true, true, false},
		policy.ReasonTooManyWaiting: {429, reduced, true, true, false},
		policy.ReasonContended:      {429, reduced, true, true, false},
		policy.ReasonInFlight:       {429, quotaExceeded, true, true, true},
		policy.ReasonPenalty:        {429, "#abnormal-usage-detected", true, true, false},
		policy.ReasonShed:           {503, reduced, true, true, false},
		policy.ReasonSuspended:      {429, quotaExceeded, false, true, false},
		policy.ReasonSeveral:        {400, plain, false, false, false},
	}
	if len(rows) != len(policy.Reasons) {
		t.Errorf("%d rows for %d reasons", len(rows), len(policy.Reasons))
	}
	for reason, want := range rows {
		limit := `{"quota":3,"window":"1h"}`
		if reason == policy.ReasonInFlight {
			limit = `{"in_flight":3}`
		}
		req, status := decide(t, `{"version":"weir/v1","policies":[{"name":"p","partition":[],"mode":"local","limit":`+
			limit+`}]}`, 4)
		if status != limiter.Refused {
			t.Fatal(status)
		}
		req.Reason, req.Hits[0].Retry = reason, 7*quota.Second
		if !want.waits {
			req.Hits[0].Retry = quota.Never
		}
		var r respond.Refusal
		r.Write(req, now, wall, false)
		detail, kind := problem(t, req)
		head := lines(&r.Headers)
		uses := strings.Contains(detail, "used up") || strings.Contains(detail, "all places are in use")
		got := answer{r.Status, kind[max(strings.IndexByte(kind, '#'), 0):], strings.Contains(head, "retry-after: "),
			strings.Contains(head, "x-envoy-ratelimited: true\n"), uses}
		if got != want || strings.Contains(detail, "Try again in ") != want.waits {
			t.Errorf("%v: %+v, want %+v: %s\n%s", reason, got, want, detail, head)
		}
		if want.waits && !regexp.MustCompile("retry-after: [78]\n").MatchString(head) {
			t.Errorf("%v: asked to wait for 7 s\n%s", reason, head)
		}
	}
}

// A suspended limit is 0 of 0, with its window and without a moment to come again, in all dialects.
func TestASuspendedLimit(t *testing.T) {
	const set = `{"version":"weir/v1","headers":{"legacy":"%s"},"policies":[{"name":"p","partition":[],"mode":"local",
		"limit":{"quota":0,"window":"1h"},"response":{"body":"{limit} {window} {retry_after} {reset}"}}]}`
	for legacy, want := range map[string]string{
		"off":         "",
		"x-ratelimit": "x-ratelimit-limit: 0\nx-ratelimit-remaining: 0\n",
		"envoy":       "x-ratelimit-limit: 0, 0;w=3600;name=\"p\"\nx-ratelimit-remaining: 0\n",
		"github":      "x-ratelimit-limit: 0\nx-ratelimit-remaining: 0\nx-ratelimit-used: 0\nx-ratelimit-resource: p\n",
		"discord": "x-ratelimit-limit: 0\nx-ratelimit-remaining: 0\nx-ratelimit-bucket: 30c4f33c995f8749\n" +
			"x-ratelimit-scope: ",
		"ratelimit": "ratelimit-limit: 0\nratelimit-remaining: 0\n",
	} {
		req, status := decide(t, strings.Replace(set, "%s", legacy, 1), 1)
		var r respond.Refusal
		r.Write(req, now, wall, false)
		got := lines(&r.Headers)
		if status != limiter.Refused || r.Status != 429 || string(r.Body) != "0 1h never never" {
			t.Errorf("%s: %v %d %s", legacy, status, r.Status, r.Body)
		}
		head := "cache-control: no-store\nx-envoy-ratelimited: true\n" + want
		fields := "ratelimit-policy: \"p\";q=0;w=3600\nratelimit: \"p\";r=0\n"
		if !strings.HasPrefix(got, head) || strings.Contains(got, "reset") ||
			legacy != "ratelimit" && !strings.Contains(got, fields) {
			t.Errorf("%s:\n%s", legacy, got)
		}
	}
	req, status := decide(t, `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":0,"window":"1h"}}]}`, 1)
	want := "Policy p is suspended for this caller: its quota is 0, and waiting does not help."
	if detail, kind := problem(t, req); detail != want || !strings.HasSuffix(kind, "#quota-exceeded") {
		t.Errorf("%s %s", kind, detail)
	}
	want = "refused policy=p reason=suspended remaining=0"
	if said := string(respond.AppendDecision(nil, req, status)); said != want {
		t.Error(said)
	}
}

// With many policies the fields keep within 2 kB, and have the policies nearest to exhaustion; the
// left-out policies are counted.
func TestFieldsOfManyPolicies(t *testing.T) {
	var policies []string
	for i := range 300 {
		limit := 1000 - i
		if i == 150 {
			limit = 2
		}
		policies = append(policies,
			fmt.Sprintf(`{"name":"a-policy-%d","partition":[],"limit":{"quota":%d,"window":"1h"},"mode":"local"}`, i, limit))
	}
	set := `{"version":"weir/v1","headers":{"legacy":"envoy"},"policies":[` + strings.Join(policies, ",") + `]}`
	for n, refused := range []bool{1: false, 3: true} {
		if n%2 == 0 {
			continue
		}
		req, status := decide(t, set, n)
		var r respond.Refusal
		if refused {
			r.Write(req, now, wall, false)
		} else {
			r.Headers.Limits(req, false, 0, wall)
		}
		if got := status == limiter.Refused; got != refused || r.Headers.LeftOut < 200 {
			t.Fatalf("after %d: %v, %d left out", n, status, r.Headers.LeftOut)
		}
		for i := range r.Headers.Len() {
			name, value := r.Headers.At(i)
			if len(value) > 2060 || len(name) > 9 && name[:9] == "ratelimit" && !strings.HasPrefix(string(value), `"a-policy-150";`) {
				t.Errorf("after %d, %s has %d bytes: %.60s", n, name, len(value), value)
			}
		}
	}
}

func TestPairsAreTheABIsEncoding(t *testing.T) {
	req, _ := decide(t, `{"version":"weir/v1",`+two, 1)
	var h respond.Headers
	h.Limits(req, false, 0, wall)
	b := h.AppendPairs(nil)
	n := int(binary.LittleEndian.Uint32(b))
	at, got := 4+8*n, ""
	for i := range n {
		name, value := int(binary.LittleEndian.Uint32(b[4+8*i:])), int(binary.LittleEndian.Uint32(b[8+8*i:]))
		got += string(b[at:at+name]) + ": " + string(b[at+name+1:at+name+1+value]) + "\n"
		at += name + value + 2
	}
	if got != lines(&h) || at != len(b) {
		t.Errorf("encoded\n%s\nwant\n%s", got, lines(&h))
	}
}

func TestDiscord(t *testing.T) {
	const doc = `{"version":"weir/v1","headers":{"standard":"off","legacy":"discord"},"policies":[{"name":"p","partition":[%s],"if_absent":"shared","limit":{"quota":3,"window":"2s"}}]}`
	bucket := map[string]string{}
	for partition, scope := range map[string]string{``: "global", `"header:x-tenant"`: "shared", `"header:x-tenant","consumer"`: "user"} {
		text := strings.Replace(strings.Replace(doc, "%s", partition, 1), `"headers"`, `"identity":{"consumer":[{"header":"x-api-key"}]},"headers"`, 1)
		req, _ := decide(t, text, 1)
		var h respond.Headers
		h.Limits(req, false, 0, wall)
		got := map[string]string{}
		for i := range h.Len() {
			name, value := h.At(i)
			got[name] = string(value)
		}
		if got["x-ratelimit-scope"] != scope || got["x-ratelimit-reset-after"] != "0.667" ||
			len(got["x-ratelimit-bucket"]) != 16 {
			t.Errorf("[%s]: %v", partition, got)
		}
		bucket[got["x-ratelimit-bucket"]] = partition
	}
	if len(bucket) != 3 {
		t.Errorf("bucket ids %v", bucket)
	}
}

// The upstream may be a limiter too: the client sees the stricter of both, each family of headers
// whole, in however many lines the upstream wrote it.
func TestTheStricterStays(t *testing.T) {
	req, _ := decide(t, `{"version":"weir/v1","headers":{"legacy":"x-ratelimit"},`+two, 1) // a: 99 left, b: 2 left
	const standard, legacy = "ratelimit-policy ratelimit ", "x-ratelimit-limit x-ratelimit-remaining x-ratelimit-reset"
	for _, c := range []struct{ upstream, ours, replaced string }{
		{"", standard + legacy, ""},
		{`ratelimit="theirs";r=1;t=9`, legacy, ""},
		{`ratelimit="theirs";r=9,"other";t=3;r=1 x-ratelimit-remaining=1`, "", ""},
		{`ratelimit="a";r=5000 ratelimit="b";r=1`, legacy, ""},
		{`ratelimit="a";r=5000 ratelimit="b";r=3`, standard + legacy, "ratelimit ratelimit"},
		{`ratelimit-limit=9 ratelimit-remaining=1 ratelimit-reset=4`, legacy, ""},
		{`ratelimit-limit=9 ratelimit-remaining=7 ratelimit-reset=4`, standard + legacy, "ratelimit-limit ratelimit-remaining ratelimit-reset"},
		{`ratelimit="theirs";r=2 x-ratelimit-remaining=2`, standard + legacy, "ratelimit x-ratelimit-remaining"},
		{`ratelimit="a;r=1" x-ratelimit-remaining=many`, standard + legacy, "ratelimit x-ratelimit-remaining"},
		{`x-ratelimit-limit=50 x-ratelimit-used=49 x-ratelimit-resource=core`, standard + legacy, "x-ratelimit-limit x-ratelimit-used x-ratelimit-resource"},
		{`x-ratelimit-remaining=1 x-ratelimit-used=49`, standard, ""},
		{`server=x retry-after=9`, standard + legacy, ""},
	} {
		var h respond.Headers
		h.Limits(req, false, 0, wall)
		all := map[string]string{}
		for i := range h.Len() {
			name, value := h.At(i)
			all[name] = string(value)
		}
		var upstream []match.Header
		for _, line := range strings.Fields(c.upstream) {
			name, value, _ := strings.Cut(line, "=")
			upstream = append(upstream, match.Header{Name: []byte(name), Value: []byte(value)})
		}
		var names, replaced []string
		for _, header := range h.YieldTo(upstream) {
			replaced = append(replaced, string(header.Name))
		}
		for i := range h.Len() {
			name, value := h.At(i)
			if all[name] != string(value) {
				t.Errorf("%s became %s", name, value)
			}
			names = append(names, name)
		}
		if !sameSet(names, strings.Fields(c.ours)) || !sameSet(replaced, strings.Fields(c.replaced)) {
			t.Errorf("upstream says %s: kept %v in place of %v, want %s in place of %s", c.upstream, names, replaced,
				c.ours, c.replaced)
		}
	}
}

func sameSet(a, b []string) bool {
	seen := map[string]int{}
	for _, s := range a {
		seen[s]++
	}
	for _, s := range b {
		seen[s]--
	}
	for _, n := range seen {
		if n != 0 {
			return false
		}
	}
	return true
}

func TestOwnResponse(t *testing.T) {
	const doc = `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":1,"window":"1h"},"response":%s}]}`
	for response, want := range map[string]struct {
		status uint32
		kind   string
		body   string
	}{
		`{"status":503,"body":"Later, please."}`: {503, "text/plain; charset=utf-8", "Later, please."},
		`{"body":"Later, please."}`:              {429, "text/plain; charset=utf-8", "Later, please."},
		`{"body":"{policy} allows {limit} per {window}: in {retry_after} s, or all of it in {reset}. {"}`: {429, "text/plain; charset=utf-8",
			"p allows 1 per 1h: in 3627 s, or all of it in 3627. {"},
		`{"content_type":"application/json","body":"{\"error\":\"rate_limited\",\"by\":\"{policy}\",\"retry_after\":{retry_after}}"}`: {429, "application/json",
			`{"error":"rate_limited","by":"p","retry_after":3627}`},
		`{"status":503}`: {503, "application/problem+json", `"status":503`},
	} {
		req, _ := decide(t, strings.Replace(doc, "%s", response, 1), 2)
		var r respond.Refusal
		r.Write(req, now, wall, false)
		got := lines(&r.Headers)
		if r.Status != want.status || !strings.Contains(string(r.Body), want.body) ||
			!strings.Contains(got, "content-type: "+want.kind+"\n") || !strings.Contains(got, "retry-after: ") {
			t.Errorf("%s: %d %s\n%s", response, r.Status, r.Body, got)
		}
	}
}

// A request that costs more than a full bucket holds never passes, and {reset} is 0, not never.
func TestTheResetOfAFullBucket(t *testing.T) {
	req, _ := decide(t, `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":1,"window":"1h"},
		"response":{"body":"{retry_after} {reset}"}}]}`, 2)
	req.Reason, req.Hits[0].Retry = policy.ReasonTooDear, quota.Never
	var r respond.Refusal
	for reset, want := range map[quota.Span]string{0: "never 0", 1: "never 1", quota.Never: "never never"} {
		req.Hits[0].Reset = reset
		if r.Write(req, now, wall, false); string(r.Body) != want {
			t.Errorf("%d: %s, want %s", reset, r.Body, want)
		}
	}
}

// The set's responses are chosen by the kind of refusal, with their headers, and a policy's own
// response comes first, field by field.
func TestResponsesOfTheSet(t *testing.T) {
	const set = `{"version":"weir/v1","responses":{
		"quota":{"status":420,"body":"quota {{limit}} {{x}} {limit} {{","headers":{"X-Code":"slow","x-two":"2"}},
		"penalty":{"body":"penalty"},"failure":{"status":504,"body":"failure"},"overload":{"body":"overload"},
		"absent":{"status":401,"body":"{\"absent\":{\"in\":{retry_after}}}","content_type":"Application/JSON\t; q=1"},
		"suspended":{"status":402}},
		"policies":[{"name":"p","partition":[],"limit":{"quota":1,"window":"1h"}%s}]}`
	const absent = "401 Application/JSON\t; q=1 "
	for _, c := range []struct {
		own    string
		reason policy.Reason
		want   string
	}{
		{"", policy.ReasonQuota, "420 text/plain; charset=utf-8 slow quota {1} {x} 1 {{"},
		{"", policy.ReasonInFlight, "420 text/plain; charset=utf-8 slow quota {1} {x} 1 {{"},
		{"", policy.ReasonTooDear, "420 text/plain; charset=utf-8 slow quota {1} {x} 1 {{"},
		{"", policy.ReasonPenalty, "429 text/plain; charset=utf-8  penalty"},
		{"", policy.ReasonAbsent, absent + ` {"absent":{"in":null}}`},
		{"", policy.ReasonSeveral, absent + ` {"absent":{"in":null}}`},
		{"", policy.ReasonBadCost, absent + ` {"absent":{"in":null}}`},
		{"", policy.ReasonFailure, "504 text/plain; charset=utf-8  failure"},
		{"", policy.ReasonShed, "503 text/plain; charset=utf-8  overload"},
		{"", policy.ReasonContended, "429 text/plain; charset=utf-8  overload"},
		{"", policy.ReasonTooManyWaiting, "429 text/plain; charset=utf-8  overload"},
		{"", policy.ReasonSuspended, `402 application/problem+json  {"type":"https`},
		{`{"body":"own"}`, policy.ReasonQuota, "420 text/plain; charset=utf-8 slow own"},
		{`{"status":503}`, policy.ReasonQuota, "503 text/plain; charset=utf-8 slow quota {1} {x} 1 {{"},
		{`{"status":503,"body":"own"}`, policy.ReasonAbsent, "401 text/plain; charset=utf-8  own"},
	} {
		if c.own != "" {
			c.own = `,"response":` + c.own
		}
		req, _ := decide(t, strings.Replace(set, "%s", c.own, 1), 2)
		if req.Reason = c.reason; !answer.Kinds[c.reason].Waits {
			req.Hits[0].Retry, req.Hits[0].Reset = quota.Never, quota.Never
		}
		var r respond.Refusal
		r.Write(req, now, wall, false)
		got := fmt.Sprint(r.Status, " ", header(&r.Headers, "content-type"), " ", header(&r.Headers, "x-code"), " ",
			string(r.Body))
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%v with %s:\n%s\nwant\n%s", c.reason, c.own, got, c.want)
		}
		if r.Write(req, now, wall, true); strings.Contains(string(r.Body), "{") ||
			header(&r.Headers, "x-two") != "2" && strings.Contains(c.want, "slow") {
			t.Errorf("%v by gRPC: %s\n%s", c.reason, r.Body, lines(&r.Headers))
		}
	}
}

// Requests in flight have no window: how long one counts at most is no figure for callers.
func TestInFlightHasNoWindow(t *testing.T) {
	req, status := decide(t, `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"in_flight":1},
		"max_hold":"10m","mode":"local","response":{"body":"{limit} in {window}"}}]}`, 2)
	var r respond.Refusal
	if r.Write(req, now, wall, false); status != limiter.Refused || string(r.Body) != "1 in 0s" {
		t.Errorf("%v: %s", status, r.Body)
	}
}

// header is the value of a header, empty if it is not there.
func header(h *respond.Headers, name string) string {
	for i := range h.Len() {
		if at, value := h.At(i); at == name {
			return string(value)
		}
	}
	return ""
}

// A ban has a response too, of which no limit is part.
func TestTheResponseToBans(t *testing.T) {
	req, _ := decide(t, `{"version":"weir/v1","responses":{"ban":{"status":451,"headers":{"x-code":"banned"},
		"body":"{\"end\":{retry_after}}","content_type":"application/json"}}}`, 1)
	var r respond.Refusal
	for ends, want := range map[int64]string{0: `{"end":null}`, 65_001: `{"end":61}`} {
		req.BanEnds = ends
		r.WriteBan(req, 5_000_000, false)
		if r.Status != 451 || string(r.Body) != want || header(&r.Headers, "x-code") != "banned" ||
			header(&r.Headers, "content-type") != "application/json" {
			t.Errorf("%d %s\n%s", r.Status, r.Body, lines(&r.Headers))
		}
	}
	if r.WriteBan(req, 5_000_000, true); !strings.HasPrefix(string(r.Body), "This request is banned") || r.GRPC != 7 {
		t.Errorf("by gRPC: %d %s", r.GRPC, r.Body)
	}
}

// A snapshot that no control plane writes leaves the filter whole: header lines without an end,
// more of them than there is room for, and a ban with fields of limits.
func TestResponsesThatNoDocumentHas(t *testing.T) {
	for _, c := range []policy.Response{
		{Headers: "x-code"}, {Headers: "\n\n\n"}, {Headers: strings.Repeat("a\nb\n", 500)},
		{Body: "{policy} {limit} {window} {reset}"},
	} {
		set := &policy.Set{Identity: policy.Identity{IPv6Prefix: 64}}
		set.Responses = make([]policy.Response, policy.AnswerCount)
		set.Headers.Legacy, set.Responses[policy.AnswerBan] = dialect.Discord, c
		rules := &ruleset.Rules{}
		if err := rules.Index.Load(wire.AppendSnapshot(nil, wire.Snapshot{Set: set})); err != nil {
			t.Fatal(err)
		}
		req := &limiter.Request{}
		a := &match.Attributes{Method: []byte("GET"), Path: []byte("/")}
		limiter.New(limiter.Config{}).Begin(req, rules, a, now)
		var r respond.Refusal
		r.WriteBan(req, 0, false)
		if r.Status != 403 || r.Headers.Len() > 24 || strings.Contains(string(r.Body), "{policy}") {
			t.Errorf("%d %s\n%s", r.Status, r.Body, lines(&r.Headers))
		}
	}
}

// The sentence describes the event, in the limit's own figures.
func TestWordsOfRefusals(t *testing.T) {
	for _, c := range []struct {
		policy string
		n      int
		cost   string
		want   string
	}{
		{`"limit":{"quota":3,"window":"1h"}`, 4, "1", "Policy p allows 3 per 1h, and that is used up. Try again in "},
		{`"limit":{"quota":60,"window":"1h","burst":3}`, 4, "1",
			"Policy p allows 3 at once and 60 per 1h in the long run, and that is used up for now. Try " +
				"again in "},
		{`"limit":{"quota":60,"window":"1h","burst":3}`, 1, "4",
			"This request costs 4, and policy p never allows more than 3 at once: waiting does not help."},
		{`"algorithm":"sliding_log","limit":{"quota":3,"window":"1h"}`, 4, "1", "Policy p allows 3 per 1h, and that is used up. Try again in "},
		{`"algorithm":"leaky_bucket","max_wait":"1m","limit":{"quota":1,"window":"10s","burst":3}`, 5, "1",
			"Policy p lets 1 per 10s through, and its queue is full. Try again in "},
	} {
		req, status := decide(t, `{"version":"weir/v1","policies":[{"name":"p","partition":[],"mode":"local",`+
			`"cost":{"header":"x-cost","max":9},`+c.policy+`}]}`, c.n, "x-cost", c.cost)
		detail, kind := problem(t, req)
		if status != limiter.Refused || !strings.HasPrefix(detail, c.want) ||
			!strings.HasSuffix(kind, "#quota-exceeded") {
			t.Errorf("%s: %v %s\n%s\nwant\n%s", c.policy, status, kind, detail, c.want)
		}
	}
}

// A region that grants a part of the burst refuses a cost that only the whole burst would allow.
func TestWordsOfACostAboveTheRegionsPart(t *testing.T) {
	req, _ := decide(t, `{"version":"weir/v1","policies":[{"name":"p","partition":[],"mode":"local",`+
		`"cost":{"header":"x-cost","max":9},"limit":{"quota":5,"window":"1h"}}]}`, 1, "x-cost", "9")
	req.Hits[0].Cost = 5
	want := "This request costs 5, and policy p never allows as much at once in this region: waiting does not help."
	if detail, _ := problem(t, req); req.Reason != policy.ReasonTooDear || detail != want {
		t.Errorf("%s\nwant\n%s", detail, want)
	}
}

// Tokens that could not be counted are never called used up.
func TestWordsOfFailures(t *testing.T) {
	req, _ := decide(t, `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":1,"window":"1h"}}]}`, 2)
	for _, c := range []struct {
		reason policy.Reason
		source policy.DecisionSource
		want   string
	}{
		{policy.ReasonFailure, policy.ByFailureDeny,
			"The limiter cannot reach the counters of policy p now. Try again in "},
		{policy.ReasonFailure, policy.ByShare,
			"The limiter cannot reach the counters of policy p now, and this proxy admits no more alone. " +
				"Try again in "},
		{policy.ReasonTooManyWaiting, policy.ByOverload, "Too many requests wait for policy p already. Try again in "},
		{policy.ReasonContended, policy.ByOverload,
			"Too many requests ask for the same count of policy p at once. Try again in "},
	} {
		req.Reason, req.Source = c.reason, c.source
		detail, kind := problem(t, req)
		if !strings.HasPrefix(detail, c.want) || !strings.HasSuffix(kind, "#temporary-reduced-capacity") {
			t.Errorf("%v by %v: %s\n%s\nwant\n%s", c.reason, c.source, kind, detail, c.want)
		}
	}
}

// A penalty is named, its answer ends with it to the second, and nothing is said of other buckets.
func TestWordsOfPenalties(t *testing.T) {
	req, _ := decide(t, `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":1,"window":"1h"}}]}`, 2)
	req.Reason, req.Source = policy.ReasonPenalty, policy.ByPenalty
	req.Hits[0].Retry, req.Hits[0].Reset = 600*quota.Second-1, 600*quota.Second-1
	detail, kind := problem(t, req)
	want := "Policy p has refused this caller too often, so all its requests are refused until the penalty ends. Try " +
		"again in 600 seconds."
	if detail != want || !strings.HasSuffix(kind, "#abnormal-usage-detected") {
		t.Errorf("%s\n%s\nwant\n%s", kind, detail, want)
	}
	var r respond.Refusal
	r.Write(req, now, wall, false)
	if r.Status != 429 || !strings.HasPrefix(lines(&r.Headers), "retry-after: 600\n") || !strings.Contains(lines(&r.Headers), `"p";r=0;t=600`) {
		t.Errorf("%d\n%s", r.Status, lines(&r.Headers))
	}
	if said := string(respond.AppendDecision(nil, req, limiter.Refused)); !strings.Contains(said,
		"refused policy=p reason=penalty retry_us=599999999") {
		t.Error(said)
	}
}

func TestWordsOfBans(t *testing.T) {
	for ban, want := range map[match.Ban]string{match.AddressBan: "this address", match.ConsumerBan: "key or identity",
		match.KeyBan: "is counted"} {
		var r respond.Refusal
		req, _ := decide(t, `{"version":"weir/v1"}`, 1)
		req.Ban = ban
		r.WriteBan(req, 5_000_000, false)
		if r.Status != 403 || !json.Valid(r.Body) || !strings.Contains(string(r.Body), want) {
			t.Errorf("%d %s, want %s", r.Status, r.Body, want)
		}
		if said := lines(&r.Headers); strings.Contains(said, "retry-after") {
			t.Errorf("a ban for good ends: %s", said)
		}
		req.BanEnds = 65_001 // milliseconds
		if r.WriteBan(req, 5_000_000, false); !strings.Contains(lines(&r.Headers), "retry-after: 61\n") {
			t.Errorf("a ban for a minute and a bit: %s", lines(&r.Headers))
		}
		r.WriteBan(req, 5_000_000, true)
		if !strings.Contains(string(r.Body), want) || json.Valid(r.Body) || r.GRPC != 7 {
			t.Errorf("to gRPC: %d %s", r.GRPC, r.Body)
		}
	}
}

// The policy that is named in the body is the item of the header field.
func TestViolatedPoliciesAreItemsOfTheField(t *testing.T) {
	req, _ := decide(t, `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":[{"quota":1,"window":"1h"},{"quota":100,"window":"1d"}]}]}`, 2)
	var r respond.Refusal
	r.Write(req, now, wall, false)
	if !strings.Contains(string(r.Body), `"violated-policies":["p.1h"]`) || !strings.Contains(lines(&r.Headers), "ratelimit: \"p.1h\";r=0") {
		t.Errorf("%s\n%s", r.Body, lines(&r.Headers))
	}
}

// A refusal is silent about a policy of which nothing is known: it is neither used up nor full.
func TestNothingIsSaidOfUnaskedPolicies(t *testing.T) {
	req, _ := decide(t, `{"version":"weir/v1","headers":{"legacy":"x-ratelimit"},`+two, 4) // b refuses
	req.Hits[0].Known, req.Hits[0].Remaining = false, 0
	var r respond.Refusal
	r.Write(req, now, wall, false)
	got := lines(&r.Headers)
	if strings.Contains(got, `"a"`) || !strings.Contains(got, `ratelimit: "b";r=0`) || !strings.Contains(got, "x-ratelimit-limit: 3\n") {
		t.Errorf("got\n%s", got)
	}
	var h respond.Headers
	req.Hits[1].Known = false
	if h.Limits(req, false, 0, wall); h.Len() != 0 {
		t.Errorf("of nothing known:\n%s", lines(&h))
	}
}

// problem is the sentence and the type of the problem that a refusal is answered by.
func problem(t *testing.T, req *limiter.Request) (detail, kind string) {
	t.Helper()
	var r respond.Refusal
	r.Write(req, now, wall, false)
	var p struct{ Type, Detail string }
	if err := json.Unmarshal(r.Body, &p); err != nil {
		t.Fatalf("%s: %v", r.Body, err)
	}
	return p.Detail, p.Type
}

// Where waiting does not help, a body says so, and stays JSON.
func TestABodyWithoutAWait(t *testing.T) {
	for response, want := range map[string]string{
		`{"body":"wait {retry_after}"}`: "wait never",
		`{"body":"{\"wait\":{retry_after}}","content_type":"application/vnd.x+json; v=1"}`: `{"wait":null}`,
	} {
		req, _ := decide(t, `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":1,"window":"1h"},
			"cost":{"header":"x-cost","max":9},"response":`+response+`}]}`, 1, "x-cost", "2")
		var r respond.Refusal
		if r.Write(req, now, wall, false); string(r.Body) != want {
			t.Errorf("%s: %s", response, r.Body)
		}
	}
}

func TestCostsInAccessLogs(t *testing.T) {
	for want, costs := range map[string][]limiter.Cost{
		"":                                nil,
		"reserved=3":                      {{Reserved: 3, Actual: -1}},
		"reserved=3 actual=0":             {{Reserved: 3}},
		"reserved=3; reserved=1 actual=9": {{Reserved: 3, Actual: -1}, {Reserved: 1, Actual: 9}},
	} {
		if got := string(respond.AppendCosts(nil, &limiter.Request{Costs: costs})); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
