package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
)

const toExplain = `version: weir/v1
tiers: [free, paid]
identity: {consumer: [{header: X-API-Key}], tier: [assignment], default_tier: free}
exempt: {paths: [/health], methods: [OPTIONS]}
banned: {client_ips: [203.0.113.0/24]}
policies:
  - {name: api, match: {paths: [/api/**]}, partition: [consumer], limit: {quota: 3, window: 1h}, mode: strict}
  - name: login
    match: {hosts: [shop.example], methods: [POST], paths: [/login], headers: [{name: x-app, equals: web}]}
    partition: [client_ip]
    limit: {quota: 5, window: 1m}
    mode: strict
  - {name: paid, match: {tiers: [paid]}, partition: [], limit: {quota: 9, window: 1s}}
  - {name: here, match: {paths: [/here]}, partition: [], limit: {quota: 7, window: 1s}, mode: local}
  - {name: must, match: {paths: [/must]}, partition: [consumer], if_absent: deny, limit: {quota: 7, window: 1s}}
  - {name: zero, match: {paths: [/zero]}, partition: [], limit: {quota: 0, window: 1s}}
  - {name: watch, match: {paths: [/api/**]}, partition: [client_ip], limit: {quota: 2, window: 1h}, mode: strict, enforcement: shadow}
  - {name: gone, match: {paths: [/api/**]}, partition: [], limit: {quota: 2, window: 1h}, enforcement: 'off'}
`

// explain asks for the answer that a request would get.
func (p *plane) explain(body string) api.ExplainedAnswer {
	p.t.Helper()
	return decoded[api.ExplainedAnswer](p.t, p.do(call{"eyes", "POST", "/v1/explain",
		map[string]string{"Content-Type": "application/json"}, body}))
}

// inWords is an explanation in short.
func inWords(a api.ExplainedAnswer) string {
	words := []string{string(a.Access), string(a.Answer.Verdict)}
	if a.Answer.Policy != "" {
		words = append(words, fmt.Sprint(a.Answer.Status), a.Answer.Policy, a.Answer.Reason)
	}
	for _, p := range a.Policies {
		text := fmt.Sprintf("%s=%s/%s%v", p.Name, p.State, p.Verdict, p.Caller)
		for _, b := range p.Limits {
			text += fmt.Sprintf(":%d", b.Level)
		}
		words = append(words, text)
	}
	return strings.Join(words, " ")
}

// The set's responses decide the status of an answer, if they have a status.
func TestAnAnswerOfTheSetIsExplained(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, toExplain+
		"responses: {suspended: {status: 402}, ban: {status: 451}}\n"); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for body, want := range map[string]int{
		`{"url": "/zero"}`: 402, `{"url": "/must"}`: 403, `{"url": "/", "client_ip": "203.0.113.66"}`: 451,
	} {
		if a := p.explain(body); a.Answer.Status != want {
			t.Errorf("%s: %+v, want %d", body, a.Answer, want)
		}
	}
}

// A gRPC caller gets 200 and a status of gRPC, also where the set's responses say another status;
// so does a browser that calls by gRPC-Web.
func TestTheStatusOfGRPCIsExplained(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, toExplain+"responses: {suspended: {status: 402}}\n"); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for body, want := range map[string]string{
		`"/zero", %s "application/grpc"}]`:                                   "200 8 Policy zero is suspended for this caller: its quota is 0, and waiting does not help.",
		`"/must", %s "application/grpc+proto"}]`:                             "200 7 Policy must needs to know whose request this is, and the request does not say.",
		`"/", "client_ip": "203.0.113.66", %s "application/grpc-web-text"}]`: "200 7 Requests from this address are banned.",
		`"/zero", %s "application/json"}]`:                                   "402 - Policy zero is suspended for this caller: its quota is 0, and waiting does not help.",
		`"/nothing", %s "application/grpc"}]`:                                "0 - It passes: no policy is for it.",
	} {
		a := p.explain(`{"url": ` + fmt.Sprintf(body, `"headers": [{"name": "Content-Type", "value":`) + `}`).Answer
		got := fmt.Sprintf("%d - %s", a.Status, a.Sentence)
		if a.GrpcStatus != 0 {
			got = fmt.Sprintf("%d %d %s", a.Status, a.GrpcStatus, a.Sentence)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}

func TestARequestIsExplained(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, toExplain); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	const key = `"headers": [{"name": "X-Api-Key", "value": "alice"}]`
	for _, c := range []struct{ body, want string }{
		{`{"url": "/api/x", ` + key + `}`, "open passes api=enforce/passes[consumer:alice]:3"},
		{`{"url": "/api/x", "client_ip": "192.0.2.1", ` + key + `}`,
			"open passes api=enforce/passes[consumer:alice]:3 watch=shadow/passes[client_ip:192.0.2.1]:2"},
		{`{"url": "/api/x"}`, "open passes"},
		{`{"url": "https://shop.example/login", "method": "POST", "client_ip": "192.0.2.1", "headers": ` +
			`[{"name": "x-app", "value": "web"}]}`, "open passes login=enforce/passes[client_ip:192.0.2.1]:5"},
		{`{"url": "//shop.example//login/../login#x", "method": "post", "client_ip": "192.0.2.1", "headers": ` +
			`[{"name": "x-app", "value": "web"}, {"name": "host", "value": "shop.example"}]}`, "open passes"},
		{`{"url": "//login/../login#x", "method": "post", "client_ip": "192.0.2.1", "headers": ` +
			`[{"name": "x-app", "value": "web"}, {"name": "host", "value": "shop.example"}]}`,
			"open passes login=enforce/passes[client_ip:192.0.2.1]:5"},
		{`{"url": "https://shop.example/login", "method": "POST", "headers": ` +
			`[{"name": "x-app", "value": "web"}]}`, "open depends"},
		{`{"url": "/here"}`, "open depends here=enforce/depends[]"},
		{`{"url": "/must"}`, "open refused 403 must absent must=enforce/refused[consumer:-]"},
		{`{"url": "/zero"}`, "open refused 429 zero suspended zero=enforce/refused[]"},
		{`{"url": "/health"}`, "exempt passes"},
		{`{"url": "/api", "client_ip": "203.0.113.9"}`, "banned refused"},
	} {
		if got := inWords(p.explain(c.body)); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.body, got, c.want)
		}
	}
	misses := map[string]string{}
	for _, miss := range p.explain(`{"url": "https://other.example/login", "client_ip": "192.0.2.1"}`).Others {
		misses[miss.Name] = fmt.Sprint(len(miss.Fails), "/", miss.Conditions, " ", strings.Join(miss.Fails, "; "))
	}
	for name, want := range map[string]string{
		"login": `3/5 host is other.example, and must be shop.example; method is GET, and must be POST; ` +
			`header x-app is absent, and must be "web"`,
		"paid": "1/1 the caller's tier must be paid",
		"api": "2/2 path is /login, and must be /api/**; it has no consumer, by which the policy counts, " +
			"and if_absent is skip",
		"zero": "1/1 path is /login, and must be /zero",
		"gone": "1/1 path is /login, and must be /api/**",
	} {
		if misses[name] != want {
			t.Errorf("%s: %s\nwant %s", name, misses[name], want)
		}
	}
	for _, miss := range p.explain(`{"url": "/api/x"}`).Others {
		if miss.Name == "gone" && miss.Fails[0] != "it is switched off, by the policy set or by an order" {
			t.Error(miss)
		}
	}
}

// explain and weir keys get show the same about a bucket, and the question charges nothing.
func TestAnExplanationSaysWhatKeysSay(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, toExplain); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	const body = `{"url": "/api/x", "headers": [{"name": "x-api-key", "value": "alice"}]}`
	for left := range 4 {
		before := p.explain(body)
		key := decoded[api.KeyAnswer](t, p.do(call{"eyes", "GET", "/v1/keys/api?partition=consumer:alice", nil, ""}))
		one := before.Policies[0]
		if one.Key != key.Key || len(one.Limits) != 1 || one.Limits[0].Bucket != key.Buckets[0].Bucket ||
			one.Limits[0].Level != key.Buckets[0].Level || one.Limits[0].Level != int64(3-left) {
			t.Errorf("%+v, and keys say %+v", one, key)
		}
		refused := left == 3
		if (before.Answer.Verdict == "refused") != refused || refused && (before.Answer.Reason != "quota" ||
			before.Answer.RetryAfterSeconds < 1100 || before.Answer.RetryAfterSeconds > 1201 ||
			!strings.HasPrefix(before.Answer.Sentence, "Policy api allows 3 per 1h, and that is used up.")) {
			t.Errorf("with %d left: %+v", 3-left, before.Answer)
		}
		bucket, err := keyhash.Parse(one.Limits[0].Bucket)
		if err != nil {
			t.Fatal(err)
		}
		p.spend(t, bucket, 0, 1)
	}
	p.do(call{"root", "POST", "/v1/keys/api/ban?partition=consumer:alice", map[string]string{
		"Content-Type": "application/json"}, `{"reason": "a leak"}`})
	if a := p.explain(body); a.Access != "banned" || len(a.Standing) != 1 || a.Standing[0].What != "ban" ||
		a.Answer.Sentence != "The key under which this request is counted is banned." {
		t.Errorf("%+v", a)
	}
	if w := p.do(call{"ed", "PUT", "/v1/enforcement", map[string]string{"If-Match": `"0"`},
		`{"orders": [{"state": "off", "reason": "too much"}]}`}); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if a := p.explain(body); a.Access != "off" || len(a.Standing) != 2 || a.Standing[0].What != "off" {
		t.Errorf("%+v", a)
	}
}

// After a loss of the store, missing tokens of a bucket may be lost tokens. explain says so in the
// words of the refusal, and does not say that the limit is used up.
func TestALossIsNoUse(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, toExplain); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	const body = `{"url": "/api/x", "headers": [{"name": "x-api-key", "value": "alice"}]}`
	bucket, err := keyhash.Parse(p.explain(body).Policies[0].Limits[0].Bucket)
	if err != nil {
		t.Fatal(err)
	}
	p.spend(t, bucket, 0, 3)
	for lost, want := range map[bool]string{
		false: "quota: Policy api allows 3 per 1h, and that is used up.",
		true: "failure: The limiter has lost how much this caller had used of policy api, and allows less of it " +
			"for a time.",
	} {
		p.store.lost = lost
		a := p.explain(body).Answer
		if got := a.Reason + ": " + a.Sentence; !strings.HasPrefix(got, want) || a.Status != 429 ||
			a.RetryAfterSeconds < 1 {
			t.Errorf("%d %s, want %s", a.Status, got, want)
		}
	}
}

// The ban or bypass of the caller comes first whatever policies the request meets.
func TestWhatStandsBeforeTheLimitsIsExplained(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, toExplain); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	json := map[string]string{"If-Match": "*", "Content-Type": "application/json"}
	for _, c := range []struct{ record, access, what string }{
		{`{"banned": {"reason": "leaked"}}`, "banned", "ban leaked"},
		{`{"bypass": {"reason": "pays"}}`, "exempt", "bypass pays"},
	} {
		if w := p.do(call{"ed", "PUT", "/v1/consumers/alice", json, c.record}); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		for _, path := range []string{"/api/x", "/here", "/nothing"} {
			a := p.explain(`{"url": "` + path + `", "headers": [{"name": "x-api-key", "value": "alice"}]}`)
			if string(a.Access) != c.access || len(a.Standing) != 1 ||
				fmt.Sprint(a.Standing[0].What, " ", a.Standing[0].Reason) != c.what {
				t.Errorf("%s with %s: %s, %+v", path, c.record, a.Access, a.Standing)
			}
		}
		if a := p.explain(`{"url": "/here"}`); a.Access != "open" || len(a.Standing) > 0 {
			t.Errorf("without a key: %s, %+v", a.Access, a.Standing)
		}
	}
}

func TestAQuestionAboutARequestIsRefused(t *testing.T) {
	p := newPlane(t)
	if got := inWords(p.explain(`{"url": "/"}`)); got != "open passes" {
		t.Errorf("before the first policy set: %s", got)
	}
	json := map[string]string{"Content-Type": "application/json"}
	for _, c := range []struct {
		body   string
		header map[string]string
		status int
		kind   string
	}{
		{`{"url": "shop"}`, json, 400, "bad-request"},
		{`{"url": "/", "client_ip": "here"}`, json, 400, "bad-request"},
		{`{"url": "/", "verified": {"sub": "alice"}}`, json, 400, "bad-request"},
		{`{"method": "GET"}`, json, 400, "bad-request"},
		{`{"url": "/", "method": "PO ST"}`, json, 400, "bad-request"},
		{`{"url": "/", "headers": [{"name": "x y", "value": ""}]}`, json, 400, "bad-request"},
		{`{"url": "/", "body": "x"}`, json, 400, "bad-request"},
		{`{"url": "/` + strings.Repeat("x", 70_000) + `"}`, json, 413, "too-large"},
		{`url: /`, map[string]string{"Content-Type": "application/yaml"}, 400, "bad-request"},
	} {
		p.problem(p.do(call{"eyes", "POST", "/v1/explain", c.header, c.body}), c.status, c.kind)
	}
	away := newPlaneOn(t, "away", func(*api.Config) {})
	away.problem(away.do(call{"eyes", "POST", "/v1/explain", json, `{"url": "/"}`}), 503, "store-unavailable")
}
