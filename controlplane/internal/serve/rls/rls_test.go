package rls_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-proxy/weir/controlplane/controlplanetest"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/controlplane/internal/serve/rls"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a control plane in virtual time, and its gRPC service.
type world struct {
	t       testing.TB
	now     time.Time
	store   *controlplanetest.Store
	plane   *controlplanetest.ControlPlane
	view    *calls.View
	set     *policy.Set
	service *rls.Service
	reports []*wire.Decisions
	counted map[string]int
	// would counts the refusals that policies in shadow and candidates would have made.
	would     map[string]int
	consumers match.Consumers
	penalties *penalties.Enforcer
	// grants is how often the service has asked for tokens, or has looked.
	grants atomic.Int64
}

// Grant implements rls.Leases.
func (w *world) Grant(ctx context.Context, req wire.LeaseRequest) (wire.LeaseReply, error) {
	w.grants.Add(1)
	return w.plane.Grant(ctx, req)
}

// start is on a whole minute, hour and day.
var start = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

func begin(t testing.TB, document string) *world {
	t.Helper()
	w := &world{t: t, now: start, counted: map[string]int{}, would: map[string]int{}}
	w.store = &controlplanetest.Store{Now: func() quota.Instant { return quota.Instant(w.now.UnixMicro()) }}
	w.plane = controlplanetest.New(w.store, 1, 1, func() time.Time { return w.now }, func() float64 { return 0 })
	w.put(document)
	w.restart()
	return w
}

// restart makes the service anew.
func (w *world) restart() {
	w.service = rls.New(rls.Config{
		Leases: w, View: func() *calls.View { return w.view },
		Consumers: func(context.Context) match.Consumers { return w.consumers },
		Penalties: w.penalties,
		Report:    func(m *wire.Decisions) { w.reports = append(w.reports, m) },
		Tried: func(policy string, candidate, undetermined bool) {
			if !undetermined {
				w.would[fmt.Sprintf("%s %v", policy, candidate)]++
			}
		},
		Meter: w, Now: func() time.Time { return w.now },
	})
	w.service.Wait()
}

// put makes a document, in YAML, the policy set in force.
func (w *world) put(document string, orders ...wire.Order) {
	w.t.Helper()
	w.putOrdered(document, &wire.Enforcement{Orders: orders})
}

// putOrdered does so with orders and bans.
func (w *world) putOrdered(document string, orders *wire.Enforcement) {
	w.t.Helper()
	snapshot, set, err := w.plane.Put(0, []byte(document))
	if err == nil {
		w.view, err = calls.NewView(snapshot, set, orders, w.now.UnixMilli())
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.set = set
}

func (w *world) Call(o rls.Outcome) { w.counted[string(o)]++ }
func (w *world) Decided(policy, source string, refused bool) {
	w.counted[fmt.Sprintf("%s %s refused=%v", policy, source, refused)]++
}
func (w *world) Watched(policy string, candidate bool, seen rls.Shadow) {
	w.counted[fmt.Sprintf("%s candidate=%v %s", policy, candidate, seen)]++
}

// descriptor reads entries like user=bob path=/v1.
func descriptor(text string) *ratelimitpb.RateLimitDescriptor {
	d := &ratelimitpb.RateLimitDescriptor{}
	for _, e := range strings.Fields(text) {
		key, value, _ := strings.Cut(e, "=")
		d.Entries = append(d.Entries, &ratelimitpb.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

// request reads a domain, and descriptors that are apart by bars.
func request(domain, descriptors string) *rlspb.RateLimitRequest {
	in := &rlspb.RateLimitRequest{Domain: domain}
	for _, one := range strings.Split(descriptors, "|") {
		in.Descriptors = append(in.Descriptors, descriptor(one))
	}
	return in
}

func (w *world) ask(in *rlspb.RateLimitRequest) *rlspb.RateLimitResponse {
	w.t.Helper()
	out, err := w.service.ShouldRateLimit(w.t.Context(), in)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// shown returns an answer in short: the code, and for each descriptor the code, the remaining
// tokens of the limit, and the reset.
func shown(out *rlspb.RateLimitResponse) string {
	text := out.OverallCode.String() + ":"
	for _, s := range out.Statuses {
		text += " " + s.Code.String()
		if l := s.CurrentLimit; l != nil {
			text += fmt.Sprintf("(%s %d/%d %s %s)", l.Name, s.LimitRemaining, l.RequestsPerUnit, l.Unit,
				s.DurationUntilReset.AsDuration())
		}
	}
	return text
}

func headersOf(out *rlspb.RateLimitResponse) string {
	var lines []string
	for _, h := range out.ResponseHeadersToAdd {
		lines = append(lines, h.Key+": "+h.Value)
	}
	return strings.Join(lines, "\n")
}

const users = `
version: weir/v1
headers: {standard: "off"}
policies:
  - name: users
    match: {domain: edge, descriptors: [{name: api, equals: v1}, {name: user, present: true, except: [{equals: root}, {prefix: test-}]}]}
    partition: ["descriptor:user"]
    algorithm: fixed_window
    align: utc
    limit: {quota: 2, window: 1m}
    mode: strict
`

// A descriptor has just the entries of a policy, in their order, and none of the values that are
// excepted. Each value has a bucket.
func TestDescriptors(t *testing.T) {
	w := begin(t, users)
	w.now = start.Add(10 * time.Second)
	for _, c := range []struct{ domain, descriptors, want string }{
		{"edge", "api=v1 user=bob", "OK: OK(users 1/2 MINUTE 50s)"},
		{"edge", "api=v1 user=alice", "OK: OK(users 1/2 MINUTE 50s)"},
		{"edge", "api=v1 user=bob", "OK: OK(users 0/2 MINUTE 50s)"},
		{"edge", "api=v1 user=bob", "OVER_LIMIT: OVER_LIMIT(users 0/2 MINUTE 50s)"},
		{"other", "api=v1 user=bob", "OK: OK"},
		{"edge", "api=v2 user=bob", "OK: OK"},
		{"edge", "user=bob api=v1", "OK: OK"},
		{"edge", "api=v1", "OK: OK"},
		{"edge", "api=v1 user=bob path=/", "OK: OK"},
		{"edge", "api=v1 user=root", "OK: OK"},
		{"edge", "api=v1 user=test-1", "OK: OK"},
		{"edge", "api=v1 user=test", "OK: OK(users 1/2 MINUTE 50s)"},
	} {
		if got := shown(w.ask(request(c.domain, c.descriptors))); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.domain, c.descriptors, got, c.want)
		}
	}
	if got := fmt.Sprint(w.counted); got != "map[allowed:4 refused:1 unlimited:7 users central refused=false:4 users "+
		"central refused=true:1]" {
		t.Error(got)
	}
}

// All descriptors must be allowed; a refused call is charged nowhere. Two descriptors of one bucket
// are charged for both.
func TestAllOrNothing(t *testing.T) {
	w := begin(t, users)
	for _, c := range []struct{ descriptors, want string }{
		{"api=v1 user=a|api=v1 user=b", "OK: OK(users 1/2 MINUTE 1m0s) OK(users 1/2 MINUTE 1m0s)"},
		{"api=v1 user=a", "OK: OK(users 0/2 MINUTE 1m0s)"},
		{"api=v1 user=a|api=v1 user=b", "OVER_LIMIT: OVER_LIMIT(users 0/2 MINUTE 1m0s) OK(users 1/2 MINUTE 1m0s)"},
		{"api=v1 user=b|unknown=1", "OK: OK(users 0/2 MINUTE 1m0s) OK"},
		{"api=v1 user=c|api=v1 user=c", "OK: OK(users 1/2 MINUTE 1m0s) OK(users 0/2 MINUTE 1m0s)"},
		{"api=v1 user=d", "OK: OK(users 1/2 MINUTE 1m0s)"},
		{"api=v1 user=d|api=v1 user=d", "OVER_LIMIT: OK(users 1/2 MINUTE 1m0s) OVER_LIMIT(users 1/2 MINUTE 1m0s)"},
		{"api=v1 user=d", "OK: OK(users 0/2 MINUTE 1m0s)"},
	} {
		if got := shown(w.ask(request("edge", c.descriptors))); got != c.want {
			t.Errorf("%s: %s, want %s", c.descriptors, got, c.want)
		}
	}
}

// A call, or a descriptor, can count for several hits. A descriptor that counts for none only
// looks. Nothing is given back for negative hits.
func TestHits(t *testing.T) {
	w := begin(t, strings.Replace(users, "quota: 2", "quota: 10", 1))
	call := func(addend uint32, own *wrapperspb.UInt64Value, negative bool) string {
		in := request("edge", "api=v1 user=a")
		in.HitsAddend, in.Descriptors[0].HitsAddend, in.Descriptors[0].IsNegativeHits = addend, own, negative
		return shown(w.ask(in))
	}
	for _, c := range []struct {
		name     string
		addend   uint32
		own      *wrapperspb.UInt64Value
		negative bool
		want     string
	}{
		{"none is one", 0, nil, false, "OK: OK(users 9/10 MINUTE 1m0s)"},
		{"the call's", 3, nil, false, "OK: OK(users 6/10 MINUTE 1m0s)"},
		{"the descriptor's", 3, wrapperspb.UInt64(5), false, "OK: OK(users 1/10 MINUTE 1m0s)"},
		{"a look", 3, wrapperspb.UInt64(0), false, "OK: OK(users 1/10 MINUTE 1m0s)"},
		{"too many", 2, nil, false, "OVER_LIMIT: OVER_LIMIT(users 1/10 MINUTE 1m0s)"},
		{"to be given back", 5, nil, true, "OK: OK(users 1/10 MINUTE 1m0s)"},
		{"more than ever pass", 11, nil, false, "OVER_LIMIT: OVER_LIMIT(users 1/10 MINUTE 1m0s)"},
		{"beyond all bounds", 0, wrapperspb.UInt64(math.MaxUint64), false,
			"OVER_LIMIT: OVER_LIMIT(users 1/10 MINUTE 1m0s)"},
		{"the rest", 1, nil, false, "OK: OK(users 0/10 MINUTE 1m0s)"},
	} {
		if got := call(c.addend, c.own, c.negative); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// A policy for the call as a whole counts by the largest own number of a descriptor that describes
// the request, else by the call's number. Descriptors of other policies change nothing.
func TestHitsOfTheCallAsAWhole(t *testing.T) {
	own := func(n uint64) *wrapperspb.UInt64Value { return wrapperspb.UInt64(n) }
	const key, other = "header:x-key=a", "tokens=many"
	for _, of := range []string{"match: {domain: edge}, ", ""} {
		w := begin(t, `
version: weir/v1
policies:
  - {name: keyed, `+of+`partition: ["header:x-key"], limit: {quota: 20, window: 1m}, mode: strict}
`)
		for _, c := range []struct {
			name        string
			addend      uint32
			descriptors string
			own         []*wrapperspb.UInt64Value
			negative    bool
			takes       int64
		}{
			{"none is one", 0, key, []*wrapperspb.UInt64Value{nil}, false, 1},
			{"the call's", 3, key, []*wrapperspb.UInt64Value{nil}, false, 3},
			{"the descriptor's", 3, key, []*wrapperspb.UInt64Value{own(5)}, false, 5},
			{"a look", 3, key, []*wrapperspb.UInt64Value{own(0)}, false, 0},
			{"to be given back", 3, key, []*wrapperspb.UInt64Value{own(2)}, true, 0},
			{"the largest", 0, key + "|header:x-key=a path=/a", []*wrapperspb.UInt64Value{own(2), own(4)}, false, 4},
			{"its own before the call's", 3, key + "|path=/a", []*wrapperspb.UInt64Value{own(2), nil}, false, 2},
			{"a look that names its content", 0, key + "|header:content-type=a/b",
				[]*wrapperspb.UInt64Value{own(0), nil}, false, 0},
			{"the tokens of another policy", 0, key + "|" + other, []*wrapperspb.UInt64Value{nil, own(9)}, false, 1},
			{"a look of another policy", 0, key + "|" + other, []*wrapperspb.UInt64Value{nil, own(0)}, false, 1},
			{"tokens of another, with what the request is", 0, key + "|path=/a " + other,
				[]*wrapperspb.UInt64Value{nil, own(9)}, false, 9},
		} {
			w.now = w.now.Add(time.Hour)
			in := request("edge", c.descriptors)
			in.HitsAddend = c.addend
			for i := range c.own {
				in.Descriptors[i].HitsAddend, in.Descriptors[i].IsNegativeHits = c.own[i], c.negative
			}
			for i, s := range w.ask(in).Statuses {
				if got := 20 - int64(s.LimitRemaining); got != c.takes || s.CurrentLimit.GetName() != "keyed" {
					t.Errorf("with %q, %s: descriptor %d takes %d of %v, want %d", of, c.name, i, got,
						s.CurrentLimit, c.takes)
				}
			}
		}
	}
}

// The headers have each limit once, in its state after all descriptors of the call. For one bucket
// it is the final rest. For several buckets it is the bucket that is nearest to exhaustion or that
// refuses. A call that lacks a part of a key has no bucket, so that no rest is named.
func TestHeadersBehindAllDescriptors(t *testing.T) {
	w := begin(t, `
version: weir/v1
headers: {standard: draft-11, legacy: x-ratelimit}
policies:
  - {name: users, match: {domain: edge}, partition: ["descriptor:user"], limit: {quota: 10, window: 1h}, mode: strict}
  - {name: keys, match: {domain: keyed}, partition: ["header:x-api-key"], if_absent: deny, limit: {quota: 10, window: 1h}, mode: strict}
`)
	header := func(out *rlspb.RateLimitResponse, name string) (value string) {
		for _, h := range out.ResponseHeadersToAdd {
			if h.Key == name {
				value = h.Value
			}
		}
		return value
	}
	for _, c := range []struct{ domain, descriptors, limit, legacy string }{
		{"edge", "user=a|user=a", `"users";r=8`, "8"},
		{"edge", "user=a|user=a|user=a", `"users";r=5`, "5"},
		{"edge", "user=a|user=b", `"users";r=4`, "4"},
		{"edge", "user=b|user=a", `"users";r=3`, "3"},
		{"edge", "user=b|user=b|user=a|user=a|user=a", `"users";r=0`, "0"},
		{"edge", "user=b|user=a", `"users";r=0`, "0"}, // The second refuses.
		{"edge", "user=b", `"users";r=5`, "5"},
		{"keyed", "other=1", "", ""},
	} {
		out := w.ask(request(c.domain, c.descriptors))
		limit, _, _ := strings.Cut(header(out, "ratelimit"), ";t=")
		if legacy := header(out, "x-ratelimit-remaining"); limit != c.limit || legacy != c.legacy {
			t.Errorf("%s: %q and %q, want %q and %q", c.descriptors, limit, legacy, c.limit, c.legacy)
		}
		if n := strings.Count(header(out, "ratelimit-policy"), `"users"`); n > 1 {
			t.Errorf("%s: the policy is named %d times", c.descriptors, n)
		}
		s, refused := out.Statuses[0], out.OverallCode == rlspb.RateLimitResponse_OVER_LIMIT
		if c.domain == "keyed" && (!refused || s.CurrentLimit != nil) {
			t.Errorf("a call without the key: %v", s)
		}
	}
}

// A call that costs nothing looks at a bucket of any mode.
func TestACostOfNothingLooks(t *testing.T) {
	for _, mode := range []string{"leased", "strict", "optimistic"} {
		w := begin(t, strings.Replace(`
version: weir/v1
policies:
  - {name: free, match: {domain: edge}, partition: ["descriptor:user"], limit: {quota: 3, window: 1h}, cost: 0, mode: MODE, on_failure: [deny]}
`, "MODE", mode, 1))
		for range 9 {
			if got := shown(w.ask(request("edge", "user=a"))); got != "OK: OK(free 3/3 HOUR 0s)" {
				t.Errorf("%s: %s", mode, got)
			}
		}
	}
}

// A policy that the filter uses too is applied to the call as a whole, once, by the facts in its
// entries. A policy that only an Envoy can count for is left out. Tokens of a bucket count as
// leased until the answer must be there, and refill only then.
func TestTheCallAsAWhole(t *testing.T) {
	w := begin(t, `
version: weir/v1
headers: {standard: "off"}
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: ip, partition: [client_ip], limit: {quota: 3, window: 1h}, mode: leased}
  - {name: login, match: {hosts: [a.example], methods: [POST], paths: [/login]}, partition: [client_ip], limit: {quota: 1, window: 1h}}
  - {name: key, partition: [consumer, "query:q", "cookie:c", "jwt:sub", spiffe], limit: {quota: 1, window: 1h}, mode: optimistic}
  - {name: here, partition: [], limit: {quota: 1, window: 1h}, mode: local}
  - {name: flight, partition: [], limit: {in_flight: 1}, mode: local}
  - {name: queue, partition: [], limit: {quota: 1, window: 1h}, algorithm: leaky_bucket, mode: strict}
`)
	for i, c := range []struct{ descriptors, want string }{
		{"user=a", "OK: OK"},
		{"remote_address=10.0.0.1", "OK: OK(ip 2/3 HOUR 20m0s)"},
		{"remote_address=10.0.0.1|remote_address=10.0.0.1 path=/", "OK: OK(ip 1/3 HOUR 40m0s) OK(ip 1/3 HOUR 40m0s)"},
		{"client_ip=10.0.0.2|host=A.example.:80|method=POST|path=/x/../login?a=b",
			"OK:" + strings.Repeat(" OK(login 0/1 HOUR 1h0m0s)", 4)},
		{"remote_address=10.0.0.2|host=a.example|method=POST|path=/login",
			"OVER_LIMIT:" + strings.Repeat(" OVER_LIMIT(login 0/1 HOUR 1h0m0.1s)", 4)},
		{"remote_address=10.0.0.2|host=a.example|method=GET|path=/login",
			"OK:" + strings.Repeat(" OK(ip 1/3 HOUR 40m0s)", 4)},
		{"header:X-Api-Key=k query:q=a&b cookie:c=d jwt:sub=s spiffe=spiffe://x", "OK: OK(key 0/1 HOUR 1h0m0s)"},
		{"header:x-api-key=k query:q=a&b cookie:c=d jwt:sub=s spiffe=spiffe://x",
			"OVER_LIMIT: OVER_LIMIT(key 0/1 HOUR 1h0m0.1s)"},
		{"header:x-api-key=k query:q=a cookie:c=d jwt:sub=s spiffe=spiffe://x", "OK: OK(key 0/1 HOUR 1h0m0s)"},
		{"header::path=/login", "OK: OK"},
	} {
		if got := shown(w.ask(request("any", c.descriptors))); got != c.want {
			t.Errorf("%d: %s: %s, want %s", i, c.descriptors, got, c.want)
		}
	}
}

// A wrong call is answered with a status, and costs nothing.
func TestCallsThatAreRefused(t *testing.T) {
	w := begin(t, users)
	many := request("edge", strings.TrimSuffix(strings.Repeat("a=b|", 65), "|"))
	long := request("edge", strings.TrimSpace(strings.Repeat("a=b ", 65)))
	for name, in := range map[string]*rlspb.RateLimitRequest{
		"no domain": request("", "a=b"), "no descriptors": {Domain: "edge"}, "many descriptors": many,
		"many entries": long,
	} {
		if _, err := w.service.ShouldRateLimit(t.Context(), in); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.view = nil
	if got := shown(w.ask(request("edge", "a=b"))); got != "OK: OK" || w.counted["before_snapshot"] != 1 {
		t.Errorf("before the first policy set: %s, %v", got, w.counted)
	}
}

// Clients see the same as from the filter.
func TestHeadersAndBody(t *testing.T) {
	const refused = "retry-after: 60\ncache-control: no-store\n"
	for _, c := range []struct{ headers, allowed, refused string }{
		{`{standard: draft-11, legacy: "off"}`, "ratelimit-policy: \"users\";q=2;w=60\nratelimit: \"users\";r=1;t=60",
			refused + "ratelimit-policy: \"users\";q=2;w=60\nratelimit: \"users\";r=0;t=60"},
		{`{standard: "off", legacy: x-ratelimit}`, "x-ratelimit-limit: 2\nx-ratelimit-remaining: 1\nx-ratelimit-reset: 1772323260",
			refused + "x-ratelimit-limit: 2\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 1772323260"},
		{`{standard: "off", legacy: envoy}`, "x-ratelimit-limit: 2, 2;w=60;name=\"users\"\nx-ratelimit-remaining: 1\nx-ratelimit-reset: 60",
			refused + "x-ratelimit-limit: 2, 2;w=60;name=\"users\"\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 60"},
		{`{standard: "off", legacy: ratelimit}`, "ratelimit-limit: 2\nratelimit-remaining: 1\nratelimit-reset: 60",
			refused + "ratelimit-limit: 2\nratelimit-remaining: 0\nratelimit-reset: 60"},
	} {
		w := begin(t, strings.Replace(users, `{standard: "off"}`, c.headers, 1))
		if got := headersOf(w.ask(request("edge", "api=v1 user=a"))); got != c.allowed {
			t.Errorf("%s allowed:\n%s\nwant\n%s", c.headers, got, c.allowed)
		}
		w.ask(request("edge", "api=v1 user=a"))
		out := w.ask(request("edge", "api=v1 user=a"))
		got := strings.TrimSuffix(headersOf(out), "\ncontent-type: application/problem+json")
		// The wait is spread by up to six seconds, and all times in the answer are that wait.
		_, after, _ := strings.Cut(got, "retry-after: ")
		after, _, _ = strings.Cut(after, "\n")
		retry, err := strconv.ParseInt(after, 10, 64)
		if err != nil || retry < 60 || retry > 66 {
			t.Errorf("%s: %v in %s", c.headers, err, got)
		}
		wait := strings.NewReplacer("1772323260", strconv.FormatInt(1772323200+retry, 10),
			"reset: 60", "reset: "+strconv.FormatInt(retry, 10), "after: 60", "after: "+strconv.FormatInt(retry, 10),
			"t=60", "t="+strconv.FormatInt(retry, 10))
		if got != wait.Replace(c.refused) {
			t.Errorf("%s refused:\n%s\nwant\n%s", c.headers, got, c.refused)
		}
		if body := string(out.RawBody); !strings.Contains(body, `"violated-policies":["users"],"limit":2,"window":"1m","retry_after":6`) {
			t.Errorf("body %s", body)
		}
	}
	w := begin(t, users+`    response: {content_type: application/json, body: '{"error":"{policy}","limit":{limit},"retry":{retry_after}}'}`)
	in := request("edge", "api=v1 user=a")
	in.HitsAddend = 3
	out := w.ask(in)
	if got := string(out.RawBody); got != `{"error":"users","limit":2,"retry":null}` {
		t.Errorf("own body %s", got)
	}
	if got := headersOf(out); got != "cache-control: no-store\ncontent-type: application/json" {
		t.Errorf("headers beside it: %s", got)
	}
}

// The responses of the set answer here too, bans among them; a policy's own goes before.
func TestResponsesOfTheSet(t *testing.T) {
	w := begin(t, users+`
  - {name: keyed, match: {domain: key}, partition: ["header:x-key"], if_absent: deny, limit: {quota: 1, window: 1m}}
  - {name: own, match: {domain: own}, partition: [], limit: {quota: 0, window: 1m}, response: {body: own}}
  - {name: zero, match: {domain: zero}, partition: [], limit: {quota: 0, window: 1m}}
banned: {client_ips: [192.0.2.1]}
responses:
  quota: {body: 'all {{used}} {{limit}} {retry_after} {reset}', headers: {x-code: slow}}
  suspended: {content_type: application/json, body: '{"off":{retry_after}}', headers: {x-code: "off"}}
  ban: {body: 'banned {retry_after}', headers: {x-code: banned}}
  absent: {status: 401, body: 'who? {policy} {retry_after}', headers: {www-authenticate: ApiKey}}
`)
	const grpc = "header:content-type=application/grpc+proto"
	in := request("edge", "api=v1 user=a")
	in.HitsAddend = 3
	for _, c := range []struct {
		in            *rlspb.RateLimitRequest
		body, headers string
	}{
		{in, "all {used} {2} never 0",
			"cache-control: no-store\nx-code: slow\ncontent-type: text/plain; charset=utf-8"},
		{request("own", "a=b"), "own", "cache-control: no-store\nx-code: off\ncontent-type: text/plain; charset=utf-8"},
		{request("zero", "a=b"), `{"off":null}`, "cache-control: no-store\nx-code: off\ncontent-type: application/json"},
		{request("edge", "remote_address=192.0.2.1"), "banned never",
			"cache-control: no-store\nx-code: banned\ncontent-type: text/plain; charset=utf-8"},
		{request("key", "a=b"), "who? keyed never",
			"cache-control: no-store\nwww-authenticate: ApiKey\ncontent-type: text/plain; charset=utf-8"},
		{request("key", grpc),
			"Policy keyed needs to know whose request this is, and the request does not say.",
			"cache-control: no-store\nwww-authenticate: ApiKey"},
		{request("zero", "a=b|"+grpc),
			"Policy zero is suspended for this caller: its quota is 0, and waiting does not help.",
			"cache-control: no-store\nx-code: off"},
		{request("edge", "remote_address=192.0.2.1|"+grpc), "Requests from this address are banned.",
			"cache-control: no-store\nx-code: banned"},
		{request("zero", "a=b|header:content-type=application/grpc-web"), `{"off":null}`,
			"cache-control: no-store\nx-code: off\ncontent-type: application/json"},
	} {
		out := w.ask(c.in)
		if got := headersOf(out); string(out.RawBody) != c.body || got != c.headers {
			t.Errorf("%s\n%s\nwant %s\n%s", out.RawBody, got, c.body, c.headers)
		}
	}
}

// All seconds of a refusal are when it passes, also {reset}: a quota of 2 is full after 60.
func TestResetIsTheWait(t *testing.T) {
	w := begin(t, users+"    response: {body: '{reset}'}\n")
	in := request("edge", "api=v1 user=a")
	w.ask(in)
	in.HitsAddend = 2
	out := w.ask(in)
	got, reset := headersOf(out), string(out.RawBody)
	if reset == "60" || !strings.Contains(got, "retry-after: "+reset+"\n") {
		t.Errorf("{reset} is %s beside\n%s", reset, got)
	}
}

// The answer's metadata names the policy that has decided.
func TestMetadata(t *testing.T) {
	w := begin(t, users)
	if got := w.ask(request("edge", "api=v1 user=b")).DynamicMetadata; got != nil {
		t.Errorf("an allowed call has metadata although no one asked for it: %v", got)
	}
	w.service.WithMetadata()
	meta := func() string {
		var fields []string
		for name, v := range w.ask(request("edge", "api=v1 user=a")).DynamicMetadata.AsMap() {
			fields = append(fields, fmt.Sprintf("%s=%v", name, v))
		}
		slices.Sort(fields)
		return strings.Join(fields, " ")
	}
	if got := meta(); got != "decision=allowed policy=users remaining=1 source=central" {
		t.Error(got)
	}
	meta()
	if got := meta(); got != "decision=refused policy=users reason=quota remaining=0 retry_us=6e+07 source=central" {
		t.Error(got)
	}
}

// A descriptor's own limit counts where the policy allows it, in its unit, and up to the policy's
// maximum.
func TestADescriptorsOwnLimit(t *testing.T) {
	w := begin(t, `
version: weir/v1
headers: {standard: "off"}
policies:
  - name: own
    partition: ["descriptor:user"]
    limit: {quota: {header: descriptor-limit-minute, trusted: true, max: 10, default: 2}, window: 1m}
    mode: strict
  - {name: not, partition: ["descriptor:key"], limit: {quota: 3, window: 1m}, mode: strict}
`)
	for _, c := range []struct {
		descriptor string
		quota      uint32
		unit       typepb.RateLimitUnit
		want       string
	}{
		{"user=a", 0, typepb.RateLimitUnit_UNKNOWN, "OK: OK(own 1/2 MINUTE 30s)"},
		{"user=b", 5, typepb.RateLimitUnit_MINUTE, "OK: OK(own 4/5 MINUTE 12s)"},
		{"user=c", 5, typepb.RateLimitUnit_HOUR, "OK: OK(own 1/2 MINUTE 30s)"},
		{"user=d", 1000, typepb.RateLimitUnit_MINUTE, "OK: OK(own 9/10 MINUTE 6s)"},
		{"key=a", 1000, typepb.RateLimitUnit_MINUTE, "OK: OK(not 2/3 MINUTE 20s)"},
	} {
		in := request("edge", c.descriptor)
		if c.quota > 0 {
			in.Descriptors[0].Limit = &ratelimitpb.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: c.quota,
				Unit: c.unit}
		}
		if got := shown(w.ask(in)); got != c.want {
			t.Errorf("%s with %d per %s: %s, want %s", c.descriptor, c.quota, c.unit, got, c.want)
		}
	}
}
