package limiter_test

import (
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/filter/internal/load/overload"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/filter/scenariotest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const sec = quota.Instant(quota.Second)

// node is one worker with its limiter; the control plane answers calls when the test says so.
type node struct {
	// properties are Envoy's at the request.
	properties match.Properties
	t          testing.TB
	limiter    *limiter.Limiter
	leases     *leasing.Client
	data       *shareddatatest.Data
	rules      *ruleset.Rules
	now        quota.Instant
	calls      []func(status int)
	plane      *scenariotest.Plane
	book       *inflight.Book
	stream     uint32
	// asked are the items of the last call.
	asked []wire.LeaseItem
}

func (n *node) Now() quota.Instant { return n.now }

// Call implements rpc.Client by the rule of leases, for the policies in force.
func (n *node) Call(_ string, body []byte, _ quota.Span, done func(int, []byte)) error {
	m, err := wire.DecodeLeaseRequest(body)
	if err != nil {
		n.t.Fatal(err)
	}
	n.asked = m.Items
	n.calls = append(n.calls, func(status int) {
		if status == 0 { // The call is lost, not its answer.
			done(0, nil)
			return
		}
		done(status, wire.AppendLeaseReply(nil, n.plane.Grant(0, m)))
	})
	return nil
}

// bareNode is a node without a limiter, in a system of two nodes.
func bareNode(t testing.TB) *node {
	n := &node{t: t, now: 1000 * sec, data: &shareddatatest.Data{}}
	n.plane = scenariotest.NewPlane(n.Now)
	n.plane.Nodes = 2
	return n
}

func newNode(t testing.TB, central bool, policies string) *node {
	t.Helper()
	n := bareNode(t)
	store := bucketstore.New(n.data, [4]byte{}, 1024, 0)
	n.book = newBook(n.data, 1)
	if central {
		n.leases = n.newClient(store, n.book, 1)
	}
	n.limiter = limiter.New(limiter.Config{
		Store: store, Leases: n.leases, Flights: n.book,
		Guards: overload.New(n.data, shareddata.Space{}, n.book),
	})
	n.push(1, policies)
	return n
}

func (n *node) newClient(store *bucketstore.Store, book *inflight.Book, seed uint64) *leasing.Client {
	return leasing.New(leasing.Config{
		Store: store, Flights: book, Client: n, Clock: n,
		Shared: n.data,
		Node:   "node", Boot: 1, Seed: seed,
	})
}

// newBook is the requests in flight of a worker.
func newBook(data *shareddatatest.Data, seed uint64) *inflight.Book {
	return inflight.New(data, shareddata.Space{}, 1024, seed)
}

// second is the limiter of another worker of the same node.
func (n *node) second() *limiter.Limiter {
	store := bucketstore.New(n.data, [4]byte{}, 1024, 0)
	book := newBook(n.data, 2)
	return limiter.New(limiter.Config{Store: store, Leases: n.newClient(store, book, 2), Flights: book})
}

// push puts another policy set into force.
func (n *node) push(version uint64, policies string) {
	n.t.Helper()
	n.pushDocument(version, `{"version":"weir/v1","policies":[`+policies+`]}`)
}

func (n *node) pushDocument(version uint64, document string) {
	n.t.Helper()
	doc, err := policy.ParseJSON([]byte(document))
	if err != nil {
		n.t.Fatal(err)
	}
	set, err := policy.Decode(doc)
	if err != nil {
		n.t.Fatal(err)
	}
	n.plane.Push(version, set)
	n.rules = &ruleset.Rules{Generation: version}
	n.rules.Tally.Reset(len(set.Policies))
	if err := n.rules.Index.Load(wire.AppendSnapshot(nil, wire.Snapshot{Version: version, Set: set})); err != nil {
		n.t.Fatal(err)
	}
}

// begin starts a request with the given headers.
func (n *node) begin(headers ...string) (*limiter.Request, limiter.Status) {
	a := match.Attributes{Method: []byte("GET"), Path: []byte("/"), Host: []byte("h"), ClientIP: []byte{10, 0, 0, 1},
		Properties: n.properties}
	for i := 0; i < len(headers); i += 2 {
		a.Headers = append(a.Headers, match.Header{Name: []byte(headers[i]), Value: []byte(headers[i+1])})
	}
	n.stream++
	req := &limiter.Request{Stream: n.stream}
	return req, n.limiter.Begin(req, n.rules, &a, n.now)
}

// answer lets the oldest call end with status and goes on with the request.
func (n *node) answer(status int, req *limiter.Request) limiter.Status {
	n.t.Helper()
	if len(n.calls) == 0 {
		n.t.Fatal("no call is under way")
	}
	call := n.calls[0]
	n.calls = n.calls[1:]
	call(status)
	n.limiter.SettleTrials(n.now)
	return n.limiter.Resume(req, n.now)
}

// decide is begin, where the control plane answers until the request is decided.
func (n *node) decide(headers ...string) (*limiter.Request, limiter.Status) {
	n.t.Helper()
	req, status := n.begin(headers...)
	for status == limiter.Paused {
		status = n.answer(200, req)
	}
	return req, status
}

// count makes requests until one is not allowed and returns how many were.
func (n *node) count() int {
	for allowed := 0; ; allowed++ {
		if _, status := n.begin(); status != limiter.Allowed {
			return allowed
		}
	}
}

// A request that on_failure decides counts as unanswered while the control plane is there; in an
// outage no request asks.
func TestUnansweredRequestsAreCounted(t *testing.T) {
	n := newNode(t, true, `{"name":"p","partition":[],"limit":{"quota":100,"window":"1h"},"mode":"strict"}`)
	for i, want := range []uint64{1, 2, 2} { // The third failure in a row opens the breaker.
		req, _ := n.begin()
		if status := n.answer(504, req); status != limiter.Allowed || n.limiter.Stats.Unanswered != want {
			t.Errorf("failure %d: %v, %d unanswered, want %d", i+1, status, n.limiter.Stats.Unanswered, want)
		}
	}
	if _, status := n.begin(); status != limiter.Allowed || n.limiter.Stats.Unanswered != 2 {
		t.Errorf("in an outage: %v, %d unanswered", status, n.limiter.Stats.Unanswered)
	}
}

// A client that one central limit refuses again and again does not use up another one meanwhile.
func TestARefusedRequestIsChargedNowhereAtTheControlPlane(t *testing.T) {
	// In mode leased up to two kept tokens expire unused for each request that passes, while the
	// other limit has plenty.
	for mode, most := range map[string]int64{"leased": 3, "strict": 1} {
		n := newNode(t, true, `
			{"name":"daily","partition":[],"limit":{"quota":1000,"window":"24h","burst":1000},"mode":"`+mode+`"},
			{"name":"hourly","partition":[],"limit":{"quota":100,"window":"1h","burst":10},"mode":"`+mode+`"}`)
		allowed := 0
		for range 7200 { // Two requests a second for an hour.
			n.now += sec / 2
			n.leases.Tick(n.now)
			for len(n.calls) > 0 {
				n.answer(200, &limiter.Request{})
			}
			_, status := n.decide()
			if status == limiter.Allowed {
				allowed++
			}
		}
		daily := n.plane.Ledgers[bucketOf(t, n, 0)].At(n.now, lease.Ask{Params: n.rules.Index.Limit(0).Params})
		used := daily.Params.TokensIn(daily.Debt) + 1000/24 // the tokens earned back in the hour
		if allowed < 100 || allowed > 110 || used > most*int64(allowed)+3 {
			t.Errorf("%s: %d passed, and %d were charged to the other limit", mode, allowed, used)
		}
	}
}

// A refusal asks the control plane for the wait of the other buckets: four times in a second if
// other nodes may use them.
func TestARefusalAsksSharedBucketsMoreOften(t *testing.T) {
	n := newNode(t, true, `{"name":"here","partition":[],"limit":{"quota":1,"window":"1s"},"mode":"local"},
		{"name":"there","partition":[],"limit":{"quota":9,"window":"1h"},"mode":"strict"}`)
	first, _ := n.begin()
	n.answer(200, first)
	asked := 0
	for range 9 {
		if again, status := n.begin(); status == limiter.Paused {
			n.answer(200, again)
			asked++
		}
	}
	if asked != 4 {
		t.Errorf("asked %d times of a bucket that other nodes share", asked)
	}
}

const optimisticByCost = `{"name":"p","partition":[],"limit":{"quota":100,"window":"1m"},"cost":{"header":"x-cost","max":100},"mode":"optimistic"}`

// A node that knows nothing yet, or that has used its slack, refuses no caller by itself: requests
// wait for the control plane, and where it is silent the share decides. No penalty begins.
func TestOptimisticWaitsBeyondItsSlack(t *testing.T) {
	for _, silent := range []bool{false, true} {
		n := newNode(t, true, `{"name":"p","partition":["client_ip"],"limit":{"quota":100,"window":"1h"},"mode":"optimistic",
			"penalty":{"after":{"refusals":1,"within":"1m"},"for":"10m"}}`)
		status := 200
		if silent {
			status = 0
		}
		for burst := range 3 { // Cold, then warm, then warm again.
			var waiting []*limiter.Request
			passed := 0
			for range 8 {
				req, got := n.begin()
				switch got {
				case limiter.Allowed:
					passed++
				case limiter.Paused:
					waiting = append(waiting, req)
				default:
					t.Fatalf("silent %v, burst %d: %v, reason %v", silent, burst, got, req.Reason)
				}
			}
			if burst == 0 && len(waiting) == 0 {
				t.Error("a cold node decided all alone")
			}
			for len(n.calls) > 0 {
				call := n.calls[0]
				n.calls = n.calls[1:]
				call(status)
			}
			n.now += quota.Instant(lease.Deadline) + 1
			n.leases.Tick(n.now)
			for _, req := range waiting {
				if got := n.limiter.Resume(req, n.now); got == limiter.Allowed {
					passed++
				} else if !silent || req.Reason != policy.ReasonFailure {
					t.Errorf("silent %v, burst %d: %v, reason %v", silent, burst, got, req.Reason)
				}
			}
			if passed != 8 {
				t.Errorf("silent %v, burst %d: %d of 8 passed", silent, burst, passed)
			}
			n.now += sec
			n.leases.Tick(n.now)
		}
	}
}

// An optimistic policy beside another policy is asked about last and separately: a refusal by the
// other policy costs it nothing.
func TestOptimisticIsAskedAboutLast(t *testing.T) {
	n := newNode(t, true, `{"name":"o","partition":[],"limit":{"quota":100,"window":"1m"},"cost":{"header":"x-cost","max":100},"mode":"optimistic"},
		{"name":"s","partition":[],"limit":{"quota":1,"window":"1m"},"mode":"strict"}`)
	for i, want := range []limiter.Status{limiter.Allowed, limiter.Refused} {
		n.now += sec
		req, status := n.begin("x-cost", "40")
		for rounds := 0; status == limiter.Paused && rounds < 3; rounds++ {
			if len(n.asked) != 1 {
				t.Errorf("request %d: %d items in a call", i, len(n.asked))
			}
			status = n.answer(200, req)
		}
		if status != want {
			t.Errorf("request %d: %v, want %v: %+v", i, status, want, req.Hits)
		}
		if i == 0 && n.asked[0].Cost != 40 || i == 1 && n.asked[0].Cost != 1 {
			t.Errorf("request %d: the last question is %+v", i, n.asked[0])
		}
	}
}

// bucketOf is the bucket of the policy at an index for begin's requests.
func bucketOf(t *testing.T, n *node, index int) keyhash.Key {
	t.Helper()
	req, status := n.begin()
	if status == limiter.Paused {
		n.limiter.Cancel(req, n.now)
		n.calls = nil
	}
	return req.Hits[index].Key
}

// contend has another worker change a slot ahead of each change.
func (n *node) contend() {
	n.data.Before = func(op string, key []byte) {
		if op == "set" {
			b, _, _ := n.data.Get(key)
			before := n.data.Before
			n.data.Before = nil
			n.data.Put(key, b)
			n.data.Before = before
		}
	}
}

// A worker that would only store that it refuses refuses all the same.
func TestContentionAdmitsNoRefusedRequest(t *testing.T) {
	for _, mode := range []string{"local", "leased", "strict"} {
		n := newNode(t, true, `{"name":"p","partition":[],"limit":{"quota":500,"window":"1h"},"cost":{"header":"x-cost","max":500},"mode":"`+mode+`","on_failure":{"then":"allow"}}`)
		ask := func(cost string) (*limiter.Request, limiter.Status) {
			a := match.Attributes{Method: []byte("GET"), Path: []byte("/"), Host: []byte("h"),
				Headers: []match.Header{{Name: []byte("x-cost"), Value: []byte(cost)}}}
			n.stream++
			req := &limiter.Request{Stream: n.stream}
			status := n.limiter.Begin(req, n.rules, &a, n.now)
			if status == limiter.Paused {
				status = n.answer(200, req)
			}
			return req, status
		}
		for _, cost := range []string{"300", "200", "100"} {
			ask(cost)
		}
		n.contend()
		for range 3 {
			n.now += 6 * ms
			if req, status := ask("100"); status != limiter.Refused || req.Reason != policy.ReasonQuota {
				t.Errorf("%s: %v (%v)", mode, status, req.Reason)
			}
		}
		if n.limiter.Stats.Contended != 0 {
			t.Errorf("%s: %d decided by the failure setting", mode, n.limiter.Stats.Contended)
		}
	}
}

// The same of a bucket that was crowded out and comes back owing, in windows and in tokens.
func TestContentionAdmitsNoRequestThatOwes(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "sliding_window"} {
		n := newNode(t, false, `{"name":"p","partition":["header:x-key"],"algorithm":"`+algorithm+`","limit":{"quota":1,"window":"1h"},"mode":"local","on_failure":{"then":"allow"}}`)
		n.limiter = limiter.New(limiter.Config{
			Store: bucketstore.New(n.data, [4]byte{}, 8, 0), Flights: newBook(n.data, 1), // One slot.
		})
		ask := func(key int) limiter.Status {
			a := match.Attributes{Method: []byte("GET"), Path: []byte("/"), Host: []byte("h"),
				Headers: []match.Header{{Name: []byte("x-key"), Value: strconv.AppendInt(nil, int64(key), 10)}}}
			n.stream++
			return n.limiter.Begin(&limiter.Request{Stream: n.stream}, n.rules, &a, n.now)
		}
		for key := range 200 {
			ask(key)
		}
		n.contend()
		if status := ask(1000); status != limiter.Refused || n.limiter.Stats.Contended != 0 {
			t.Errorf("%s: %v, %d decided by the failure setting", algorithm, status, n.limiter.Stats.Contended)
		}
	}
}

func TestContentionIsDecidedByTheFailureSetting(t *testing.T) {
	for onFailure, want := range map[string]limiter.Status{`{"then":"allow"}`: limiter.Allowed, `{"then":"deny"}`: limiter.Refused} {
		n := newNode(t, false, `{"name":"p","partition":[],"limit":{"quota":5,"window":"1h"},"mode":"local","on_failure":`+onFailure+`}`)
		n.contend()
		req, status := n.begin()
		if status != want || n.limiter.Stats.Contended != 1 ||
			status == limiter.Refused && req.Reason != policy.ReasonContended {
			t.Errorf("%s: %v (%v), %d counted", onFailure, status, req.Reason, n.limiter.Stats.Contended)
		}
	}
}

// A worker with the older set does not convert a bucket back.
func TestPushKeepsConsumption(t *testing.T) {
	limit := func(quota string) string {
		return `{"name":"p","partition":[],"limit":{"quota":` + quota + `,"window":"1h"},"mode":"local"}`
	}
	n := newNode(t, false, limit("100"))
	old := n.rules
	for range 42 {
		n.begin()
	}
	n.push(2, limit("50"))
	if req, _ := n.begin(); req.Hits[0].Remaining != 7 {
		t.Errorf("shrunk: %d left, want 7", req.Hits[0].Remaining)
	}
	n.rules = old
	if req, _ := n.begin(); req.Hits[0].Remaining != 6 {
		t.Errorf("a worker with the older set sees %d left, want 6", req.Hits[0].Remaining)
	}
	if left := n.count(); left != 6 {
		t.Errorf("%d more passed, want 6", left)
	}
}

// A request beyond the maximum of waiting requests is decided by the share, even if the policy
// would let all requests through at once: overload is no way around a limit.
func TestWaitersBeyondTheBoundAreDecidedByTheShare(t *testing.T) {
	for onFailure, want := range map[string]limiter.Status{`{"then":"allow"}`: limiter.Allowed, `{"local_for":"30s","then":"deny"}`: limiter.Allowed, `{"then":"deny"}`: limiter.Refused} {
		n := newNode(t, true, `{"name":"p","partition":["header:x-k"],"limit":{"quota":1,"window":"1h"},"on_failure":`+onFailure+`}`)
		for i := range leasing.MaxWaiting {
			if _, status := n.begin("x-k", "k"+string(rune(i+1))); status != limiter.Paused {
				t.Fatalf("request %d: %v", i, status)
			}
		}
		for i, want := range []limiter.Status{want, limiter.Refused} {
			if req, status := n.begin("x-k", "one more"); status != want ||
				status == limiter.Refused && req.Reason != policy.ReasonFailure {
				t.Errorf("%s: request %d: %v (%v), want %v", onFailure, i, status, req.Reason, want)
			}
		}
	}
}

// A percentage enforces the same keys as each smaller percentage, and more.
func TestPercent(t *testing.T) {
	enforced := map[int]map[string]bool{}
	for _, percent := range []string{"0", "10", "50", "100"} {
		n := newNode(t, false, `{"name":"p","partition":["header:x-k"],"limit":{"quota":1,"window":"1h"},"enforcement":{"enforce":`+percent+`}}`)
		set := map[string]bool{}
		for i := range 1000 {
			key := strconv.Itoa(i)
			if req, _ := n.begin("x-k", key); len(req.Hits) == 1 {
				set[key] = true
			}
		}
		share, _ := strconv.Atoi(percent)
		if got := len(set); got < 10*share-60 || got > 10*share+60 {
			t.Errorf("at %s %%, %d of 1000 keys are enforced", percent, got)
		}
		enforced[share] = set
	}
	for _, pair := range [][2]int{{10, 50}, {50, 100}} {
		for key := range enforced[pair[0]] {
			if !enforced[pair[1]][key] {
				t.Errorf("key %s is enforced at %d %% and not at %d %%", key, pair[0], pair[1])
			}
		}
	}
}

func TestBannedAndExempt(t *testing.T) {
	n := newNode(t, false, ``)
	n.pushDocument(2, `{"version":"weir/v1","identity":{"consumer":[{"header":"x-api-key"}]},
		"banned":{"client_ips":["10.0.0.1"]},
		"exempt":{"client_ips":["10.0.0.0/24"],"paths":["/healthz","/static/**"],"methods":["OPTIONS"],"consumers":["us"]},
		"policies":[{"name":"p","partition":[],"limit":{"quota":1,"window":"1h"}}]}`)
	at := func(ip byte, method, path string, headers ...match.Header) *match.Attributes {
		return &match.Attributes{
			Method: []byte(method), Path: []byte(path), Headers: headers, ClientIP: []byte{10, 0, ip, 1},
			Address: [16]byte{10: 0xff, 11: 0xff, 12: 10, 14: ip, 15: 1},
		}
	}
	key := match.Header{Name: []byte("x-api-key"), Value: []byte("us")}
	for _, c := range []struct {
		name string
		a    *match.Attributes
		want limiter.Status
	}{
		{"the first", at(9, "GET", "/"), limiter.Allowed},
		{"the second", at(9, "GET", "/"), limiter.Refused},
		{"a ban beats an exemption", at(0, "OPTIONS", "/healthz"), limiter.Banned},
		{"an exempt path", at(9, "GET", "/healthz"), limiter.Unlimited},
		{"below an exempt path", at(9, "GET", "/static/a/b"), limiter.Unlimited},
		{"another path", at(9, "GET", "/healthzz"), limiter.Refused},
		{"an exempt method", at(9, "OPTIONS", "/"), limiter.Unlimited},
		{"an exempt consumer", at(9, "GET", "/", key), limiter.Unlimited},
		{"an exempt consumer, said twice", at(9, "GET", "/", key, key), limiter.Unlimited},
		{"two consumers", at(9, "GET", "/", key, match.Header{Name: key.Name, Value: []byte("you")}), limiter.Refused},
	} {
		var req limiter.Request
		if got := n.limiter.Begin(&req, n.rules, c.a, n.now); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Operators' orders come before bans, bans before exemptions, exemptions before policies; each
// request is counted once.
func TestOrdersBansAndExemptions(t *testing.T) {
	n := newNode(t, false, ``)
	n.pushDocument(2, `{"version":"weir/v1","banned":{"client_ips":["10.0.0.1"]},"exempt":{"paths":["/healthz"]},
		"policies":[{"name":"p","partition":["header:x-k"],"limit":{"quota":1,"window":"1h"}},
			{"name":"q","match":{"paths":["/both"]},"partition":[],"limit":{"quota":1,"window":"1h"}}]}`)
	ask := func(path, key string, banned bool) limiter.Status {
		a := &match.Attributes{Method: []byte("GET"), Path: []byte(path), ClientIP: []byte{10, 0, 0, 2},
			Headers: []match.Header{{Name: []byte("x-k"), Value: []byte(key)}}, Address: [16]byte{10: 0xff, 11: 0xff,
				12: 10, 15: 2}}
		if banned {
			a.ClientIP[3], a.Address[15] = 1, 1
		}
		var req limiter.Request
		return n.limiter.Begin(&req, n.rules, a, n.now)
	}
	var req limiter.Request
	n.limiter.Begin(&req, n.rules, &match.Attributes{Method: []byte("GET"), Path: []byte("/"),
		Headers: []match.Header{{Name: []byte("x-k"), Value: []byte("bad")}}}, n.now)
	everything := wire.Order{State: policy.EnforcedOff, Percent: 100}
	only := wire.Order{State: policy.EnforcedOff, Percent: 100, Policy: []byte("p")}
	for i, c := range []struct {
		e      wire.Enforcement
		path   string
		key    string
		banned bool
		want   limiter.Status
	}{
		{wire.Enforcement{}, "/", "bad", false, limiter.Refused},
		{wire.Enforcement{}, "/healthz", "bad", false, limiter.Unlimited},
		{wire.Enforcement{}, "/", "bad", true, limiter.Banned},
		{wire.Enforcement{Bans: []wire.Ban{{Key: req.Hits[0].Key}}}, "/healthz", "bad", false, limiter.Banned},
		{wire.Enforcement{Bans: []wire.Ban{{Key: req.Hits[0].Key}}}, "/healthz", "good", false, limiter.Unlimited},
		{wire.Enforcement{Orders: []wire.Order{everything}, Bans: []wire.Ban{{Key: req.Hits[0].Key}}}, "/", "bad", true,
			limiter.Bypassed},
		{wire.Enforcement{Orders: []wire.Order{only}}, "/", "bad", false, limiter.Bypassed},
		{wire.Enforcement{Orders: []wire.Order{only}}, "/", "bad", true, limiter.Banned},
		// The other policy applies.
		{wire.Enforcement{Orders: []wire.Order{only}}, "/both", "bad", false, limiter.Allowed},
		{wire.Enforcement{Orders: []wire.Order{only}}, "/both", "bad", false, limiter.Refused},
	} {
		n.rules.Index.Enforce(&c.e, 0)
		if got := ask(c.path, c.key, c.banned); got != c.want {
			t.Errorf("step %d: %v, want %v", i, got, c.want)
		}
	}
	s := n.limiter.Stats
	if s.Bypassed != 2 || s.Banned != 3 || s.Exempt != 2 || s.Allowed != 2 || s.Refused != 2 || s.Unlimited != 0 {
		t.Errorf("%+v", s)
	}
}

// How full the fullest bucket of a policy has been is known in each mode, enforced or in shadow, by
// the limit that callers see: the nearest of several, and the caller's own. Candidates, requests in
// flight and the queue of a leaky bucket are not counted.
func TestTallyKnowsHowFullBucketsAre(t *testing.T) {
	for _, c := range []struct {
		policy string
		asks   int
		want   int64
	}{
		{`"limit":{"quota":10,"window":"1h"},"mode":"local"`, 1, 10},
		{`"limit":{"quota":10,"window":"1h"},"mode":"local"`, 7, 70},
		{`"limit":{"quota":10,"window":"1h"},"mode":"local"`, 11, 100},
		{`"limit":{"quota":10,"window":"1h"},"mode":"local","algorithm":"sliding_log"`, 4, 40},
		{`"limit":{"quota":1000,"window":"1h"},"mode":"local"`, 1, 0},
		{`"limit":{"quota":10,"window":"1h","burst":2},"mode":"local"`, 1, 50},
		{`"limit":[{"quota":10,"window":"1h"},{"quota":4,"window":"1m"}],"mode":"local"`, 3, 75},
		{`"limit":{"quota":10,"window":"1h"},"mode":"local","enforcement":"shadow"`, 4, 40},
		{`"limit":{"quota":10,"window":"1h"},"mode":"local","enforcement":"shadow"`, 11, 100},
		{`"limit":{"quota":10,"window":"1h"},"mode":"local","candidate":{"limit":{"quota":1,"window":"1h"}}`, 3, 30},
		{`"limit":{"quota":10,"window":"1h"},"mode":"local","algorithm":"leaky_bucket"`, 1, 0},
		{`"limit":{"in_flight":10},"mode":"local"`, 3, 0},
	} {
		n := newNode(t, true, `{"name":"p","partition":[],`+c.policy+`}`)
		for range c.asks {
			n.begin()
		}
		if got := n.rules.Tally.TakeUsed(0); got != c.want {
			t.Errorf("%s: %d percent are used after %d requests, want %d", c.policy, got, c.asks, c.want)
		}
	}
}

// How full a central bucket is the control plane says: nothing is known before, though a node may
// use less alone than the limit.
func TestTallyKnowsHowFullCentralBucketsAre(t *testing.T) {
	used := func(n *node, want int64, headers ...string) {
		t.Helper()
		_, status := n.decide(headers...)
		if got := n.rules.Tally.TakeUsed(0); got != want {
			t.Errorf("%d percent are used (%v), want %d", got, status, want)
		}
	}
	n := newNode(t, true, optimisticByCost)
	used(n, 0, "x-cost", "1")
	used(n, 61, "x-cost", "60")
	used(n, 62, "x-cost", "1")
	n = newNode(t, true, strings.Replace(optimisticByCost, "optimistic", "strict", 1))
	used(n, 60, "x-cost", "60")
	used(n, 100, "x-cost", "60")
	n = newNode(t, true, strings.Replace(optimisticByCost, "optimistic", "leased", 1))
	used(n, 60, "x-cost", "60")
}

// Outcomes are counted by policy until they are reported, each once.
func TestTally(t *testing.T) {
	n := newNode(t, false, `
		{"name":"several","partition":[],"limit":[{"quota":2,"window":"1h"},{"quota":9,"window":"2h"}],"mode":"local"},
		{"name":"wide","partition":[],"limit":{"quota":9,"window":"1h"}},
		{"name":"watched","partition":[],"limit":{"quota":1,"window":"1h"},"enforcement":"shadow"}`)
	n.count()
	got := map[uint32]ruleset.Counts{}
	for policy, counts, ok := n.rules.Tally.Take(); ok; policy, counts, ok = n.rules.Tally.Take() {
		got[policy] = counts
	}
	want := map[uint32]ruleset.Counts{
		0: {ruleset.CountAllowed: 2, ruleset.CountRefused: 1},
		1: {ruleset.CountAllowed: 2},
		2: {ruleset.CountShadowAllowed: 1, ruleset.CountShadowRefused: 1},
		3: {ruleset.CountAllowed: 2, ruleset.CountRefused: 1}, // all requests
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
	if _, _, ok := n.rules.Tally.Take(); ok {
		t.Error("something is left after all was taken")
	}
	for policy, want := range []int64{100, 22, 100} { // Of wide two of nine, and the others have refused.
		if used := n.rules.Tally.TakeUsed(uint32(policy)); used != want {
			t.Errorf("of policy %d %d percent were used, want %d", policy, used, want)
		}
		if used := n.rules.Tally.TakeUsed(uint32(policy)); used != 0 {
			t.Errorf("of policy %d %d percent are left after that was taken", policy, used)
		}
	}
}

// A set that bans or exempts too many shows it among all requests: both sides of a rollout then
// count the same requests.
func TestTallyOfBansAndExemptions(t *testing.T) {
	n := newNode(t, false, "")
	for list, want := range map[string]ruleset.Counts{
		`"banned":{"client_ips":["10.0.0.0/8"]}`:                               {ruleset.CountRefused: 1},
		`"exempt":{"methods":["GET"]}`:                                         {ruleset.CountAllowed: 1},
		`"exempt":{"methods":["GET"]},"banned":{"client_ips":["10.0.0.0/8"]}`:  {ruleset.CountRefused: 1},
		`"exempt":{"methods":["PUT"]},"banned":{"client_ips":["10.9.0.0/16"]}`: {ruleset.CountAllowed: 1},
	} {
		n.pushDocument(1, `{"version":"weir/v1",`+list+`,"policies":[{"name":"p","partition":[],
			"match":{"paths":["/other"]},"limit":{"quota":1,"window":"1h"}}]}`)
		a := match.Attributes{Method: []byte("GET"), Path: []byte("/"), Host: []byte("h"),
			ClientIP: []byte{10, 0, 0, 1}, Address: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1}}
		n.limiter.Begin(&limiter.Request{Stream: 1}, n.rules, &a, n.now)
		policy, got, ok := n.rules.Tally.Take()
		if !ok || policy != n.rules.Tally.All() || got != want {
			t.Errorf("%s: counted %v of %d, want %v of all", list, got, policy, want)
		}
	}
}

// A policy counts a request that waited for its tokens, and a request that it decided without its
// bucket, once each, whatever the number of its limits. A request that waited only for another
// policy is not counted.
func TestTallyOfWaitsAndFailures(t *testing.T) {
	n := newNode(t, true, `
		{"name":"central","partition":[],"limit":[{"quota":9,"window":"1h"},{"quota":9,"window":"2h"}],"mode":"strict",
			"on_failure":{"then":"allow"}},
		{"name":"near","partition":[],"limit":{"quota":9,"window":"1h"},"mode":"local"}`)
	for _, c := range []struct {
		answer int
		unsure uint32
	}{{200, 0}, {503, 1}} {
		req, status := n.begin()
		if status != limiter.Paused {
			t.Fatalf("%v before the control plane was asked", status)
		}
		if status = n.answer(c.answer, req); status != limiter.Allowed {
			t.Fatalf("after %d %v", c.answer, status)
		}
		req.CountWait(7)
		got := map[uint32]ruleset.Counts{}
		for policy, counts, ok := n.rules.Tally.Take(); ok; policy, counts, ok = n.rules.Tally.Take() {
			got[policy] = counts
		}
		central := ruleset.Counts{ruleset.CountAllowed: 1, ruleset.CountWaited: 1, ruleset.CountHeld: 7,
			ruleset.CountUnsure: c.unsure}
		want := map[uint32]ruleset.Counts{0: central, 1: {ruleset.CountAllowed: 1}, 2: central}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("after %d counted %v, want %v", c.answer, got, want)
		}
	}
}
